"""The verdict for people: `wording` (evidence and ceilings as text), `tables`, and `sections` of a report.

May import what all of `warplens.report` may, and `warplens.diagnosis`.
"""
