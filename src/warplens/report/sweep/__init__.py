"""A sweep as a document: speedups, regimes, crossover, break-even."""
