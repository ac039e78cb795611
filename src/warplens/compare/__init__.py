"""Two or more profiles, or durations of two sides, held against each other.

Whether two sides differ, by how much, and what it takes to know: `shift` (durations in blocks, their centre, the ratio
of two sides and its error), `decisions` (faster, slower, the same or undecided, and how many blocks that needs), `many`
(which of many kernels differ). The methods, and how often they err, are in
docs/explanation/comparison-statistics.md.

Why one profile's step takes longer than another's: `difference` (the exact split of the wall time, and its cause),
`work` (kernels, transfers and FLOPs), `matching` (which launch is which), `places` (GPU work by annotated range and
phase, and what makes the two hard to compare), `host` (the sides, launches, what each costs the host, what limits a
side). A new way to look at the difference gets a field in `StepDifference`.

Grids of measurements are read in `warplens.studies.sweeps`. May import `warplens.analysis`, `warplens.profile` and
`warplens.errors`: files are read before anything is compared. Which changes are more than chance is asked by the
reports, to which wording and formatting belong, too.
"""
