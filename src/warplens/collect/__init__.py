"""Recording of profiles on a machine with a GPU: finds the tools, builds and runs their commands, checks the machine.

Modules: `commands` and `compute` (pure functions that build the commands of nsys, torch.profiler and ncu by version),
`machine` (installed tools; the only access to the machine), `recording` (runs commands and keeps the manifest;
`capture` for users' own programs), `torch_run` (runs in the interpreter of the program), `doctor` (the checks).
Importing them does not import torch.

A new tool gets a module of its own, with a table of its options and
the version since which each exists.
"""
