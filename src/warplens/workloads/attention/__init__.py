"""Attention kernels: naive, tiled and flash in Triton, torch's own as baselines, each checked before it is timed.

`problem` (sizes, inputs, the float64 reference, the gate, every kernel by name, torch's backends), `kernels` and
`flash` (Triton), `hopper` (Gluon), `functions` (differentiable, round them), `measurement` (timing). A new kernel
becomes an entry of `problem.KERNELS`. torch and triton are imported when a kernel first runs.
"""
