"""From what the user named on the command line to the part of a profile that the numbers will speak of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from warplens.analysis.quality import quality_notes
from warplens.analysis.timeline import Timeline
from warplens.cli.memory import reuse_freed_memory
from warplens.cli.messages import progress
from warplens.errors import UsageError
from warplens.readers import discover, read

if TYPE_CHECKING:
    from pathlib import Path

    from warplens.analysis.window import Window
    from warplens.profile import Note

__all__ = ["Selection", "select"]

_NAMED_PROFILES = 3


@dataclass(frozen=True)
class Selection:
    """A profile, the window of it that was asked for, and what to know before its numbers."""

    timeline: Timeline
    window: Window
    notes: tuple[Note, ...]


def select(path: Path, window: str, range_name: str | None, *, launch_configuration: bool = False) -> Selection:
    """Read one profile and find the window in it.

    Args:
        path: a profile, or a folder that holds exactly one.
        window: as `Timeline.window` understands it.
        range_name: only work launched inside ranges of this name; None for all.
        launch_configuration: whether to read grids and blocks of kernels, which takes longer.

    Raises:
        UsageError: the folder holds several profiles, the window lies outside the profile, or there is no such range.
        UnreadableInputError: there is no readable profile.
    """
    profile = _only_profile(path)
    reuse_freed_memory([profile])
    with progress(f"reading {profile.name}") as tell:
        timeline = Timeline(read(profile, progress=tell, launch_configuration=launch_configuration))
        tell(f"analysing {profile.name}")
        selected = timeline.window(window, range_name)
        return Selection(timeline, selected, quality_notes(timeline, selected))


def _only_profile(path: Path) -> Path:
    found = discover([path])
    if len(found) > 1:
        named = ", ".join(str(profile.relative_to(path)) for profile in found[:_NAMED_PROFILES])
        more = f" and {len(found) - _NAMED_PROFILES} more" if len(found) > _NAMED_PROFILES else ""
        raise UsageError(
            f"{path.name}: the folder holds {len(found)} profiles ({named}{more}), and this command takes one. "
            "Name it, or use `warplens report` for all of them"
        )
    return found[0]
