"""The domain model of a profile, independent of the tool that wrote it.

Lives here: `Trace` (tables of events), `Capture` and `Note` (origin of a profile, and its gaps), `Device` (a GPU's
limits); `schema` (columns and tables); and `columns` (columns that several tables share).

A new kind of recorded fact becomes a table in `trace.TABLES` and
a field of `Trace`.
"""

from warplens.profile.schema import Column, Table
from warplens.profile.trace import TABLES, Capture, Device, Note, NoteLevel, Recorder, Trace

__all__ = ["TABLES", "Capture", "Column", "Device", "Note", "NoteLevel", "Recorder", "Table", "Trace"]
