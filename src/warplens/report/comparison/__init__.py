"""Why one side is slower than the other, as a document, as tables for a terminal, and as data.

Two sides of traces: `numbers` (everything computed once), `kernelgroups` (kernels by name, which differences are
decided), `causes` and `words` (sentences), `steptables` and `stepfigures` (tables and tiles), `document`, `stepdata`.
Two sides of measurements: `cells` (numbers) and `celldocument`. Two reports of counters: `counterdocument`.

May import what reports may; what a difference is made of is found in `warplens.compare`.
"""
