"""Modelled work: the FLOPs and the ideal bytes of a framework's operators, from the shapes that they recorded.

Nothing here is measured. `amounts` reads what an operator recorded about its inputs; `products`, `elementwise` and
`formulas` turn that into work, each for some families of operators, and `formulas` knows which belongs to which name.
`catalogue` decides at which operator each piece of GPU work is counted, never at two, joins that with the measured
time and the peaks of the GPU, and sums it up.

This package knows the Trace and the shared analyses. A formula for a new operator goes into the module of its family,
and its name into the `FORMULAS` of that module.
"""
