"""Whether two sides differ, by how much, and what it takes to know.

`shift`: durations in blocks, their centre, the ratio of two sides and its error. `decisions`: faster, slower, the same
or undecided, and how many blocks that needs. `many`: which of many kernels differ. The methods, and how often they err,
are in docs/explanation/comparison-statistics.md.
"""
