"""Evaluation of a sweep: speedups, regimes, anomalies, crossovers, and the break-even model.

`sweep` holds the data model and the resampled times, `reading` builds a sweep from measurements, `payoff` finds where
the variant starts to pay (shared by crossovers, break-even model and policies), `regimes` and `anomalies` classify
cells. `numbers` computes all of it, `document` renders it, and `cells` compares two measurement files cell by cell.
"""
