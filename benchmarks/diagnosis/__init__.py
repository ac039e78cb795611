"""A scorecard of diagnoses: our verdicts and those of other tools, on programs whose cause of lost time is known.

`python -m benchmarks.diagnosis.scorecard` prints the tables and writes them to `benchmarks/results/diagnosis.md`.

Modules: `suite` (the cases, their files and measured times), `ours` (diagnoses by Warplens), `peers` (those by
`nsys analyze` and nsys-ai, and their interpretation), `refit` (thresholds fitted to all cases but one), `scorecard`
(the tables).
"""
