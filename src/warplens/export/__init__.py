"""Export of profiles to other programs, one module per target.

A new target is a module with one function,
and a line in the command `warplens export`.
"""
