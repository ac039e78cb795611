"""Programs worth profiling, and honest measurements of them.

Lives here: `registry` (the workloads by name, and how to add your own), the transformer language model
(`transformer_lm`, `adamw`, `lm`), the vision transformer with token reduction (`vision`, `token_reduction/`, `deit`),
attention kernels (`attention/`); what they share: `ranges` (annotations for profilers), `launching` (eager, compiled,
CUDA graph), `launch_count`, `precision`, `flops`; `accumulation` (single requests served by one step); and measuring:
`measurement`, `samples` (statistics), `clocks`, `environment`, `cells` (grids of settings, survived when one runs out
of memory) and `files`.

May import `warplens.errors` alone. PyTorch is imported by the modules that compute with it, and only when one of them
is used: this package, `registry`, `cells`, `files`, `flops`, `samples` and `sizes` do without it. Nothing here needs
Polars, so that a bare machine with PyTorch can run it.

A new workload becomes a `Workload` in the registry: a frozen dataclass for its settings, and a function that prepares
a `Program` from them.
"""

from warplens.workloads.registry import Program, Setting, Work, Workload, register, workload

__all__ = ["Program", "Setting", "Work", "Workload", "register", "workload"]
