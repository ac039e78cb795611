"""All charts. One definition is interactive in HTML and becomes SVG or PNG elsewhere.

A chart function takes a small frame of final numbers and returns a `Chart`, which is drawn when a renderer needs it.
The data are aggregated beforehand by the functions beside it: no chart has more than about two thousand marks. Labels
are placed at their marks rather than in legends; values have display units.

Importing Altair takes a good part of a second, so documents import this package only to draw. A new chart is a function
in the module of its kind (`bars`, `overtime`, `plane`).
"""
