"""Benchmarks: Warplens against the tools that answer the same questions, on the same file in the same run.

`python -m benchmarks.run` runs those against a peer and prints their tables; `--quick` uses small files. Each is one
module (`report_vs_nsys`) that makes its input (`generate_nsys`), takes time and memory of whole processes
(`measure`), and gives a `comparison`; `results/` keeps what was measured, with versions and machine.
"""
