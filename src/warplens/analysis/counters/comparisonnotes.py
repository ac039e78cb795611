"""Comparison notes: what was different about the collection of two reports, and what that does to their numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warplens.analysis.counters.speedoflight import speed_of_light
from warplens.profile import Note, NoteLevel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warplens.profile.counters import KernelCounters

__all__ = ["comparison_notes"]

#: Clocks nearer to each other than this change times less than runs differ anyway.
_SAME_CLOCK: Final = 0.02

_SETTINGS: Final = {
    "clock_control": (
        "--clock-control",
        "times and rates were taken at other clocks: compare cycles, or percentages of the peak",
    ),
    "cache_control": (
        "--cache-control",
        "one begins with empty caches and the other does not: hit rates, traffic and times do not compare",
    ),
    "replay_mode": ("--replay-mode", "what is in memory and caches when a pass begins differs"),
}


def comparison_notes(before: KernelCounters, after: KernelCounters) -> tuple[Note, ...]:
    """What keeps the numbers of two reports from being compared, or limits it."""
    return (
        *_of_devices(before, after),
        *_of_settings(before, after),
        *_of_clocks(before, after),
        *_of_contents(before, after),
    )


def _of_devices(before: KernelCounters, after: KernelCounters) -> Iterator[Note]:
    names = [sorted({device.name for device in report.capture.devices}) for report in (before, after)]
    if all(names) and names[0] != names[1]:
        yield Note(
            "other-device",
            NoteLevel.WARNING,
            f"The reports are of different GPUs ({', '.join(names[0])}; {', '.join(names[1])}): percentages are of "
            "different peaks.",
        )


def _of_settings(before: KernelCounters, after: KernelCounters) -> Iterator[Note]:
    for name, (option, consequence) in _SETTINGS.items():
        one, other = getattr(before.session, name), getattr(after.session, name)
        if one is not None and other is not None and one != other:
            yield Note(
                f"other-{name.replace('_', '-')}",
                NoteLevel.WARNING,
                f"{option} was {one} before and {other} after: {consequence}.",
                f"Record both with {option} {one}",
            )
        elif (one is None) != (other is None):
            told, silent = (before, after) if one is not None else (after, before)
            yield Note(
                f"unknown-{name.replace('_', '-')}",
                NoteLevel.INFO,
                f"{option} was {one or other} in {told.capture.source}; {silent.capture.source} does not say.",
            )
    versions = before.capture.tool_version, after.capture.tool_version
    if None not in versions and versions[0] != versions[1]:
        yield Note(
            "other-tool-version",
            NoteLevel.INFO,
            f"Nsight Compute {versions[0]} and {versions[1]} recorded them: a metric of the same name may be counted "
            "in another way.",
        )


def _of_clocks(before: KernelCounters, after: KernelCounters) -> Iterator[Note]:
    clocks = [speed_of_light(report)["sm_hz"].median() for report in (before, after)]
    one, other = (clock if isinstance(clock, float) else None for clock in clocks)
    if one and other and abs(other / one - 1) > _SAME_CLOCK:
        yield Note(
            "clocks-differ",
            NoteLevel.WARNING,
            f"The multiprocessors ran at {one / 1e9:.2f} GHz before and {other / 1e9:.2f} GHz after (medians): ratios "
            "of cycles tell what ratios of times cannot.",
        )


def _of_contents(before: KernelCounters, after: KernelCounters) -> Iterator[Note]:
    sections = [set(report.session.sections) for report in (before, after)]
    if not all(sections) or sections[0] == sections[1]:
        return
    alone = [", ".join(sorted(mine - theirs)) for mine, theirs in (sections, reversed(sections))]
    parts = [
        f"only {side} has {names}" for side, names in zip(("the first", "the second"), alone, strict=True) if names
    ]
    yield Note(
        "other-sections",
        NoteLevel.INFO,
        f"Different sections were collected ({'; '.join(parts)}): what one lacks has no change.",
    )
