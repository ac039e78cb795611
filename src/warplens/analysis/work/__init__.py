"""Modelled work: the FLOPs and the ideal bytes of a framework's operators, from the shapes that they recorded.

Nothing here is measured. `arguments` reads what an operator recorded about its inputs; one module for each family of
operators (`products`, `convolution`, `attention`, `elementwise`, `rows`, `movement`, `updates`) turns that into work;
`catalogue` knows which formula belongs to which name; `counting` decides at which operator each piece of GPU work is
counted, never at two; `operators` joins it with the measured time and the peaks of the GPU, `statistics` sums it up.

This package knows the Trace and the shared analyses. A formula for a new operator goes into the module of its family,
and its name into the `FORMULAS` of that module.
"""
