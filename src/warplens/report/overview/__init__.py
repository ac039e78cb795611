"""The main document: one profile from the answer down to every table, or several side by side.

Lives here: `numbers` (runs every analysis once, says the answer, and gives the data of `report.json`), the sections in
`time`, `host` and `operators`, and `document`, which lists them. Importing `numbers` does not import Altair.
"""
