"""The document on hardware counters: what was measured, what bounds each kernel, and what to collect next.

Lives here: `numbers` (every analysis of a report, run once), `document` (put together), `sections` and `memorysections`
(its parts), `roofline` (chart and table of a roofline), `comparison` (two or more reports side by side), `joined` (a
report together with a trace, in the document of either) and `data` (the same as plain data).

May import: `warplens.analysis`, `warplens.profile` and the rest of `warplens.report`; charts only where they are drawn.
"""
