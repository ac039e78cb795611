"""The main report: one profile from the answer down to every table, or several profiles compared.

Modules: `numbers` (runs every analysis once, makes the answer and the data of `report.json`), `time` and `host` (the
sections), and `document` (the list of sections). Importing `numbers` does not import Altair.
"""
