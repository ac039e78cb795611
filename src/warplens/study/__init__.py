"""Sweeps and studies that run to their end unattended: a plan of cells, a process for each, a ledger that survives.

Lives here: what a run consists of (`tasks`), what is done (`ledger`), the loop over what is not (`engine`), the
processes that measure (`worker` at this end, `child` at the other, ended by `processes`), sweeps over registered
workloads (`asked`, `cellsweep`, `cellrun`) and over any command (`commandsweep`), the studies that come with Warplens
(`studies`), and an entry for machines that have PyTorch and nothing else (`python -m warplens.study`).

May import `warplens.workloads`, and for the report of a study, when it is written, `warplens.report` and what is below
it. PyTorch is imported in child processes alone: the one that waits must hold no GPU memory.
"""
