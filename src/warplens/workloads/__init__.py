"""Reference programs to profile, and their measurement.

`registry` (workloads by name, plans, annotations for profilers, measurements files) and `settings`; the programs
`transformer_lm`, `vision` with `token_reduction/`, and `attention/`; `launching` (eager, compiled, CUDA graph;
precision; counting launches); `measurement`, `samples` (statistics), and `cells` (grids of settings that survive cells
without enough memory; description of the machine).

PyTorch is imported by the modules that compute with it, and only when one of them
is used: this package, `registry`, `settings`, `cells` and `samples` do without it. Measuring needs neither Polars nor
SciPy, so that it runs on a bare machine with PyTorch: hence the separate statistics in `samples`.

A new workload is a `Workload` in the registry: a frozen dataclass for its settings, and a function that prepares a
`Program` from them.
"""

from warplens.workloads.registry import Program, Setting, Work, Workload, register, workload

__all__ = ["Program", "Setting", "Work", "Workload", "register", "workload"]
