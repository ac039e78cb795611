"""Why one side is slower than the other, as a document, as tables for a terminal, and as data.

Two sides of traces: `numbers` (everything computed once), `causes` (sentences), `steps` (tables and tiles), `document`.
Two sides of measurements: `cells`. What a difference is made of is found in `warplens.compare`.
"""
