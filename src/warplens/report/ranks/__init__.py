"""The document about many ranks of one run, and its numbers as JSON.

`tables` holds the tables, which the command line prints as well; `words` the sentences; `charts` the charts of this
document alone; `document` puts them together; `data` is the same for programs.
"""
