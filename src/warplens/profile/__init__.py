"""The domain model: what a profile is, whichever tool wrote it.

Lives here: `Trace` (tables of what happened when), `Capture` and `Note` (where it came from, what it cannot tell),
`Device` (a GPU's limits), and `schema`, the one place where every table's columns, types and units are declared.

May import: nothing of Warplens but `warplens.errors`. A new kind of recorded fact becomes a table in `schema.TABLES`
and a field of `Trace`.
"""

from warplens.profile.capture import Capture, Note, NoteLevel
from warplens.profile.device import Device
from warplens.profile.schema import TABLES, Column, Table
from warplens.profile.trace import Trace

__all__ = ["TABLES", "Capture", "Column", "Device", "Note", "NoteLevel", "Table", "Trace"]
