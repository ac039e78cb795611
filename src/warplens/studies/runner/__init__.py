"""Sweeps and studies that run unattended: a plan of cells, a process for each, a ledger on disk."""
