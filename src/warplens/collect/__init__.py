"""Recording profiles on a machine with a GPU: finding the tools, building their commands, running them; the doctor.

One tool per module (`nsys`, `ncu`, `torch_profiler`): pure functions that give the command for a version. `tools` finds
what is installed, `system` is the only door to the machine, `running` starts commands and keeps what they leave,
`recording` is for users' own programs. Nothing here imports torch when it is imported.

May import readers, analysis, profile and errors. A new tool gets a module of its own, with a table of its options and
the version from which each of them exists.
"""
