"""Recording profiles on a machine with a GPU: finding the tools, building their commands, running them; the doctor.

`commands` and `compute` (the commands of nsys, torch.profiler and ncu for a version: pure functions), `machine` (what
is installed; the only door to the machine), `recording` (commands started, and what they leave; `capture` for users'
own programs), `torch_run` (runs in the program's interpreter), `doctor`. Nothing here imports torch when it is
imported.

May import readers, analysis, profile and errors. A new tool gets a module of its own, with a table of its options and
the version from which each of them exists.
"""
