"""Why one side is slower than the other, as a document, as tables for a terminal, and as JSON data.

Modules: `numbers` (computes everything once), `words` (sentences), `steps` (tables and key figures), `document`. The
analysis of the difference is in `warplens.compare`.
"""
