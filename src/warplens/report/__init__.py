"""Answers made readable: a document is described once, without formatting, and rendered into each output.

Lives here: `document` (the typed blocks that a report is made of, and `SectionOf`: a section is a function from
numbers to blocks), `questions` (what can be asked of one profile with a table as the answer), one renderer an output
(`html`, `markdown`, `jsonout`, `terminal`), `charts` with `theme` (every chart is defined once, for
HTML, SVG and PNG), `text` (numbers and names for people: the only place where a quantity is rounded), and
the documents themselves (`overview`, `comparison`, `counters`, `ranks`, `measured`).

Altair, Jinja2, vl-convert and Rich are imported by the few functions that need them, so that JSON output stays fast. A
new table is a question; a new section of a document is a line in its list of sections.
"""
