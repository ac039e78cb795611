"""What a sweep says: speed-ups, regimes, anomalies, crossovers, and the break-even model.

`sweep` (the model, and its times resampled), `reading` (from measurements), `payoff` (from where on the variant pays:
one answer for `crossover`, `breakeven` and policies), `regimes`, `anomalies`; `numbers` asks all of them, `document`
tells them; `cells` holds two files of measurements against each other.
"""
