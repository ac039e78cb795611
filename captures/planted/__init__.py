"""The planted-cause suite: small programs whose one (or two) causes of lost time are known, and healthy ones.

`registry` says what a case is, `parts` holds the models and the annotations; the cases are in `host` (launches, waits,
Python), `memory` (copies, allocator, bandwidth), `kernels` (what the GPU itself is slow at, graphs), `mixtures`,
`healthy`, and `heldout`, which the rules were not written against. `run` runs cases in one process (timed, or under a
profiler), `drive` runs the whole suite.
"""
