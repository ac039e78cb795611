"""Hardware counters of kernels: distance from the roofs, the limiting roof, and the causes of the distance.

One module per question: `speedoflight` (throughputs, their parts, instructions), `roofline` and the points of its
chart, `occupancy` (theoretical and achieved), `memoryaccess` (traffic and warp stalls), `bounds` (faults of a kernel,
and its verdict), and `groups` (launches of the same kernel with the same grid and block as one). `coverage` joins a
report with a trace of the same program, `comparison` compares two reports, and `nextrun` proposes the next collection.

Every function is pure: `KernelCounters` in, a frame out, its `Table` declared beside it; a row's `launch` is the row of
`KernelCounters.launches`. Shares are 0–1. Counters describe the inside of one kernel, never the time between kernels.

A new question becomes a module with one function of `KernelCounters`; a new fault a line in `bounds`.
"""
