"""Two or more profiles, or durations of two sides, held against each other.

`statistics` (intervals, noise, verdicts, how many repetitions a decision needs), `difference` (a wall difference split
into parts that add up to it). Grids of measurements are read in `warplens.studies.sweeps`.

May import `warplens.analysis`, `warplens.profile` and `warplens.errors`: files are read before anything is compared.
"""
