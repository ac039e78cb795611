"""A framework's operators (PyTorch's `aten::linear`, …): host time, GPU time, and the backward pass of each.

`places` nests the operators of each thread, links backward operators to forward ones, and attributes GPU work to the
part of the program (module, annotation, operator, Python function) that it belongs to; `statistics` sums them up,
`coverage` measures how much of the GPU work they explain. New questions about operators go here; analyses without
operators belong one level up.
"""
