"""A framework's operators (PyTorch's `aten::linear`, …): host time, GPU time, and what the backward pass adds to each.

`places` nests the operators of each thread, links backward operators to forward ones, and names the part of the program
(module, annotation, operator, Python function) that GPU work belongs to; `statistics` sums them up, `coverage` says how
much of the GPU work they explain. New questions about operators go here; what knows no operators belongs one level up.
May import the rest of `warplens.analysis` and `warplens.profile`.
"""
