"""The main document: one profile from the answer down to every table, or several side by side.

Lives here: `numbers` (runs every analysis once), `data` (their results as plain data for `report.json`), `answer` (the
two sentences at the top), `words` (what categories and causes are called), and the document itself: `document` puts the
sections together, `sections` and `hostsections` build them. Importing `numbers` and `data` does not import Altair.
"""
