"""The grid document: what `warplens.analysis.grid` answers, as sections (a) to (e), a status table and plain data.

May import: the analyses and the rest of the report room. A question's section is a module; `document` puts them
    together.
"""
