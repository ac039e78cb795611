"""Sweeps and studies that run to their end unattended: a plan of cells, a process for each, a ledger that survives."""
