"""A scorecard of diagnoses: our verdicts and those of other tools, on programs whose cause of lost time is known.

`python -m benchmarks.diagnosis.scorecard` prints the tables and writes them to `benchmarks/results/diagnosis.md`.

Lives here: `suite` (the cases, their files and measured times), `ours` (what `warplens.diagnosis` says of them),
`peers` (what `nsys analyze` and nsys-ai say, and how that is read), `refit` (thresholds fitted to all cases but one),
`scorecard` (the tables).
"""
