"""Modelled work: the FLOPs and the minimum bytes of a framework's operators, from their recorded shapes.

Nothing here is measured. `amounts` reads the recorded inputs of an operator; `products`, `elementwise` and `formulas`
turn them into work, each for some families of operators, and `formulas` maps names to formulas. `catalogue` assigns
each piece of GPU work to exactly one operator, joins the work with the measured time and the peaks of the GPU, and sums
it up.

This package knows the Trace and the shared analyses. A formula for a new operator goes into the module of its family,
and its name into the `FORMULAS` of that module.
"""
