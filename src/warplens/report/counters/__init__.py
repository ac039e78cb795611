"""The document on hardware counters: what was measured, the bound of each kernel, and what to collect next.

Modules: `numbers` (runs every analysis of a report once, and words its results), `document` (the list of sections, and
JSON data), `hardware` (sections on parts of the GPU), `beside` (a report joined with a trace, and reports compared).
"""
