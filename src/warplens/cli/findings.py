"""The findings of a token-reduction study: of the one that comes with Warplens, or of the user's own."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from warplens.compare.policy import read_policy
from warplens.readers import read
from warplens.readers.measurements import read_measurements
from warplens.report.findings import study_evidence

if TYPE_CHECKING:
    from warplens.profile.measurements import Measurements
    from warplens.report.findings import Evidence

__all__ = ["TITLE", "own_evidence", "shipped_evidence"]

TITLE: Final = "Token reduction: what was found"

#: Input size and batch of the profiles that come with Warplens, and their sides.
_POINTS: Final = ((224, 1), (448, 8))
_SIDES: Final = (("baseline", {"method": "none"}), ("topk0.1", {"method": "topk", "keep": 0.1}))


def shipped_evidence() -> Evidence:
    """What the measurements, profiles and policy say that come with Warplens.

    Raises:
        UnreadableInputError: this installation came without them.
    """
    data = Path(str(files("warplens") / "data"))
    measured = [
        read_measurements(data / "measurements" / f"token_reduction{part}.json.xz")
        for part in ("", "_remedies", "_study", "_policy_check")
    ]
    profiles = [
        (
            {"input_size": size, "batch": batch, **side},
            read(data / "captures" / f"deit{size}_bs{batch}_{name}.sqlite.xz"),
        )
        for size, batch in _POINTS
        for name, side in _SIDES
    ]
    policy = read_policy(data / "policies" / "token_reduction.json")
    return study_evidence(
        measured[0], profiles, remedies=measured[1], grid=measured[2], policy=policy, checked=measured[3]
    )


def own_evidence(measurements: Measurements, profiles: Path, policy: Path | None) -> Evidence:
    """The same of a study of the user's.

    Args:
        measurements: of the study.
        profiles: folder with profiles of its cells, named after their settings.
        policy: to be judged, too.

    Raises:
        UnreadableInputError: the folder, a profile or the policy cannot be read.
        MissingDataError: the measurements hold no variant.
    """
    from warplens.cli.sweepreporting import listed_profiles  # noqa: PLC0415  the demo does without

    traces = [(settings, read(path)) for path, settings in listed_profiles(profiles)]
    return study_evidence(measurements, traces, policy=read_policy(policy) if policy is not None else None)
