"""Answers made readable: a document is described once, without formatting, and rendered into each output.

Lives here: `document` (the typed blocks that a report is made of), one renderer per output (`html`, `markdown`,
`jsonout`, `terminal`), `charts`, `chart_data` and `chart_theme` (every chart is defined once, for HTML, SVG and PNG),
`format` (numbers and names for people: the only place where a quantity is rounded), and the documents themselves, one
module a kind (`overview`, …).

May import: `warplens.analysis`, `warplens.profile` and `warplens.errors`. Altair, Jinja2, vl-convert and Rich are
imported by the few functions that need them, so that JSON output stays fast. A new output becomes a new renderer of
`Document`; a new kind of report becomes a new module that builds a `Document` and its plain data.
"""
