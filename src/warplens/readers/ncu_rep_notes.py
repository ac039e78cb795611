"""What an Nsight Compute report cannot tell, or not well, found while it is read: each finding a `Note`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from warplens.errors import UnreadableInputError
from warplens.profile import Note, NoteLevel

__all__ = ["Findings", "notes_of", "unreadable_from_the_start"]

_AGAIN = "Copy the report again from where it was recorded, or record it again"
_RECORD = "ncu --set detailed --output profile python your_program.py"


@dataclass(frozen=True)
class Findings:
    """What the reader knows at the end of a report.

    Attributes:
        launches: how many it read.
        stopped_at: the byte beyond which it could not read; None where it came to the end.
        reason: why, as a part of a sentence.
        unknown_bytes: size of the results of kinds that it does not know.
        unreadable_metrics: metrics whose name or value could not be read.
        unsupported: launches on a GPU that the recording ncu did not support.
        unlocked: launches whose clocks were to be locked and were not.
    """

    launches: int
    stopped_at: int | None
    reason: str
    unknown_bytes: int
    unreadable_metrics: int
    unsupported: int
    unlocked: int


def notes_of(findings: Findings) -> tuple[Note, ...]:
    """All notes about a report, those that limit the answers most first."""
    order = (NoteLevel.BLOCKING, NoteLevel.WARNING, NoteLevel.INFO)
    return tuple(sorted(_notes(findings), key=lambda note: order.index(note.level)))


def unreadable_from_the_start(known_as: Path, reason: str) -> UnreadableInputError:
    """The error for a report whose very first block cannot be read."""
    return UnreadableInputError(known_as, f"a damaged Nsight Compute report: {reason}", _AGAIN)


def _notes(findings: Findings) -> Iterator[Note]:
    if not findings.launches:
        yield Note("no-launches", NoteLevel.BLOCKING, "The report holds no profiled kernel launch.", _RECORD)
    if findings.stopped_at is not None:
        text = (
            f"The report cannot be read from byte {findings.stopped_at} on ({findings.reason}); "
            f"the {findings.launches} complete launches before it were read."
        )
        yield Note("incomplete-report", NoteLevel.WARNING, text, _AGAIN)
    if findings.unreadable_metrics:
        text = f"{findings.unreadable_metrics} metrics could not be read and are missing; the file is damaged."
        yield Note("unreadable-metrics", NoteLevel.WARNING, text, _AGAIN)
    if findings.unsupported:
        text = (
            f"The ncu that recorded this did not support the GPU: values of {findings.unsupported} of "
            f"{findings.launches} launches may be wrong or missing."
        )
        yield Note("unsupported-gpu", NoteLevel.WARNING, text, "Record again with the newest Nsight Compute")
    if findings.unlocked:
        text = (
            f"ncu could not lock the clocks of {findings.unlocked} of {findings.launches} launches, "
            "so that times and rates vary with the clock."
        )
        yield Note("clocks-not-locked", NoteLevel.INFO, text, "Compare cycles rather than times")
    if findings.unknown_bytes:
        text = (
            f"{findings.unknown_bytes} bytes hold results of a kind that this version does not know; "
            "they were passed over."
        )
        yield Note("unknown-results", NoteLevel.INFO, text)
