"""Profiles handed on to other programs: one target per module, each taking a `Trace` and giving files.

May import: `warplens.profile`, `warplens.analysis` and `warplens.errors`. A new target becomes a module with one
function and a line in the command `warplens export`.
"""
