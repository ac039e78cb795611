"""Programs worth profiling, and honest measurements of them.

`registry` (the workloads by name, how to add your own, plans, annotations for profilers, measurements files) and
`settings`; the programs: `transformer_lm`, `vision` with `token_reduction/`, `attention/`; what they share: `launching`
(eager, compiled, CUDA graph; precision; counting launches); and measuring: `measurement`, `samples`
(statistics), `cells` (grids of settings, survived when one runs out of memory; the facts of the machine).

May import `warplens.errors` alone. PyTorch is imported by the modules that compute with it, and only when one of them
is used: this package, `registry`, `settings`, `cells` and `samples` do without it. Nothing here needs Polars
or SciPy, so that a bare machine with PyTorch can run it: hence the statistics of its own in `samples`.

A new workload becomes a `Workload` in the registry: a frozen dataclass for its settings, and a function that prepares
a `Program` from them.
"""

from warplens.workloads.registry import Program, Setting, Work, Workload, register, workload

__all__ = ["Program", "Setting", "Work", "Workload", "register", "workload"]
