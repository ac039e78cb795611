"""The main document: one profile from the answer down to every table, or several side by side.

Lives here: `numbers` (runs every analysis once), `data` (their results as plain data for `report.json`), `answer` (the
two sentences at the top), `words` (what categories and causes are called), `keyfigures` (the few numbers that stand for
a profile), and the document itself: `document` puts the sections together that `sections`, `worksections` and
`hostsections` build. Importing `numbers` and `data` does not import Altair.
"""
