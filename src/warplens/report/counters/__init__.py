"""The document on hardware counters: what was measured, what bounds each kernel, and what to collect next.

Lives here: `numbers` (every analysis of a report, run once, and what counters say in words), `document` (the sections,
put together, and as data), `hardware` (the sections on parts of the GPU), `beside` (a report beside a trace, and
reports side by side).
"""
