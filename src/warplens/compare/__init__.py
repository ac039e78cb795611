"""Two or more profiles, or many measurements, held against each other.

Lives here: `samples` (durations in independent blocks) and `statistics/` (intervals, noise, verdicts); `difference/`
(a wall difference split into parts that add up to it); `sweep` (measurements of two sides over a grid), and what is
read from one: `surface/` (regimes, anomalies, confounded axes), `crossover/` and `breakeven/` (from where on the
variant pays), `policy/` (which of the two to run for a shape).

May import `warplens.analysis`, `warplens.profile` and `warplens.errors`: files are read before anything is compared.
"""
