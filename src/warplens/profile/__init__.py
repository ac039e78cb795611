"""The domain model: what a profile is, whichever tool wrote it.

Lives here: `Trace` (tables of what happened when), `Capture` and `Note` (where it came from, what it cannot tell),
`Device` (a GPU's limits); `schema`, what a column and a table are; `columns`, those that several tables share; and
`tables`, those of a `Trace`.

May import: nothing of Warplens but `warplens.errors`. A new kind of recorded fact becomes a table in `tables.TABLES`
and a field of `Trace`.
"""

from warplens.profile.schema import Column, Table
from warplens.profile.trace import TABLES, Capture, Device, Note, NoteLevel, Recorder, Trace

__all__ = ["TABLES", "Capture", "Column", "Device", "Note", "NoteLevel", "Recorder", "Table", "Trace"]
