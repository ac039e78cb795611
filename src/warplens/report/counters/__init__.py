"""The document on hardware counters: what was measured, what bounds each kernel, and what to collect next.

Lives here: `numbers` (every analysis of a report, run once), `sections` and `hardware` (the sections), `document` (put
together, and as data), `comparison` (reports side by side), `joined` (a report together with a trace).
"""
