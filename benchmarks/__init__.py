"""Benchmarks: Warplens against the tools that answer the same questions, on the same file in the same run.

`python -m benchmarks.run` runs all of them and prints one table; `--quick` uses a small file. Each comparison is one
module (`report_vs_nsys`), `generate_nsys` makes its input, `measure` takes time and memory of whole processes, and
`results/` keeps what was measured, with versions and machine.
"""
