"""What the hardware counters of a kernel say: how near it is to a roof, which one, and what holds it back.

Lives here: one module a question. `speedoflight` (throughputs, their parts, instructions), `roofline` and the points of
its chart, `occupancy` (what fits on a multiprocessor, and what was there), `memoryaccess` (what moved, and what warps
waited for), `bounds` (what is wrong with a kernel, and the verdict on it), and `groups` (launches of the same kernel
with the same grid and block as one). `coverage` joins a report with a trace of the same program, `comparison`
two reports, and `nextrun` says what to collect next.

Every function is pure: `KernelCounters` in, a frame out, its `Table` declared beside it; a row's `launch` is the row of
`KernelCounters.launches`. Shares are 0–1. Counters speak of the inside of one kernel: nothing here says anything about
the time between kernels.

May import: `warplens.profile`, `warplens.errors`, `analysis.kernel_names`, and `analysis.timeline` for traces. A new
question becomes a module with one function of `KernelCounters`; a new fault a line in `bounds`.
"""
