"""Many measurements held against each other, and how they are run unattended.

`sweeps` reads a sweep (regimes, anomalies, crossovers, the break-even model); `policies` says which variant to run for
which shape, and `AdaptiveModule` asks one at run time; `grid` answers the questions (a) to (e) of models times context
lengths; `runner` runs studies unattended; `reports` writes their documents.

May import everything but `warplens.cli`; nothing but `warplens.cli` imports it.
"""
