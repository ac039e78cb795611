"""Answers computed from a profile: pure functions, profile in, Polars frame or frozen dataclass out.

Lives here: one module per question (`kernels`, `timebudget`, `ranges`, `steps`, …), and a folder where a question takes
several (`grid`). They share a `Timeline`, which is a `Trace` plus the joins that several of them need, each computed
once, and a `Window`, the stated part of the profile that the numbers speak of. Results are not formatted: times stay
int64 nanoseconds, shares stay 0–1.

A new question becomes a new module with one public function of
`(timeline, window)`, its result's schema declared beside it.
"""
