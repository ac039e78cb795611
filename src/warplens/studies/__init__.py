"""Comparisons of many measurements, and unattended runs that take them.

`sweeps` evaluates a sweep (regimes, anomalies, crossovers, break-even model); `policies` chooses a variant for each
shape, at run time through `AdaptiveModule`; `grid` answers questions (a) to (e) over models × context lengths;
`runner` runs studies unattended; `reports` writes their documents.
"""
