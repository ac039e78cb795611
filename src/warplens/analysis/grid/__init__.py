"""The grid of profiles over model × context length: five questions, answered by measurement for each cell.

Lives here: which cell a file is (`gridcells`), its forward and training passes (`passes`, `phaseranges`), whether
its steps are complete (`completeness`), the answers per cell (`cellanswers`, with `forwardkernels`, `attention`,
`training`, `pythontimes`) and for the whole grid (`answers`). `lm_flops` holds the only modelled quantities, the
arithmetic of the transformer, and says so.

May import: the analyses beside it, `warplens.profile` and `warplens.errors`. Another question becomes a module of its
own, called from `cellanswers`.
"""
