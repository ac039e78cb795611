"""`incomplete-profile`: the profile cannot answer, or only in part; what is missing, and how to record it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from warplens.analysis.abortedsteps import aborted_steps
from warplens.diagnosis.findings import Finding, Remedy, ceiling
from warplens.profile import NoteLevel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.diagnosis.claims import Claims
    from warplens.diagnosis.facts import Facts
    from warplens.profile import Note

__all__ = ["Incomplete", "incomplete_profile", "unexplained"]

#: Notes on work or calls that happened and were not recorded.
_MISSING: Final = ("no-api-calls", "unknown-launches", "dropped-events", "lost-gpu-work", "aborted-step")

_RECAPTURE: Final = (
    "nsys profile --trace=cuda,nvtx,osrt --cuda-graph-trace=node --output profile python train.py, with an nsys as new "
    "as "
    "the program's CUDA"
)


@dataclass(frozen=True)
class Incomplete:
    """What is missing from a profile.

    Attributes:
        finding: what is missing and how to record it; it informs.
        decides: whether so much is missing that no other verdict would stand.
    """

    finding: Finding
    decides: bool


def incomplete_profile(facts: Facts, notes: Sequence[Note]) -> Incomplete | None:
    """Whether anything was lost, aborted or never recorded that the diagnosis needs; None if not."""
    limits = facts.thresholds
    blocking = [note for note in notes if note.level is NoteLevel.BLOCKING]
    missing = blocking or [note for note in notes if note.code in _MISSING]
    aborted = len(aborted_steps(facts.timeline, facts.window)) if facts.wall_ns else 0
    idle_share = facts.idle_ns / facts.wall_ns if facts.wall_ns else 0.0
    unattributed = facts.attributed_share is not None and facts.attributed_share < limits.attributed_share
    # Where next to nothing is idle, it does not matter that its cause is unknown.
    unknown = unattributed and ceiling(facts.wall_ns, facts.idle_ns) >= limits.warning_ceiling
    if not missing and facts.wall_ns and not unknown:
        return None
    decides = bool(blocking) or not facts.wall_ns or unknown or aborted >= limits.aborted_share * facts.steps > 0
    text = (
        missing[0].text
        if missing
        else "The profile does not record who launched the work, so that pauses have no cause."
    )
    if not facts.wall_ns and not missing:
        text = "No GPU work lies in the window."
    remedies = tuple(
        Remedy("Record what is missing", note.remedy, "a profile that can answer") for note in missing if note.remedy
    )
    evidence: dict[str, int | float] = {
        "gpu_busy_share": facts.busy_share,
        "idle_share": idle_share,
        "aborted_steps_count": aborted,
    }
    if facts.attributed_share is not None:
        evidence["idle_attributed_share"] = facts.attributed_share
    finding = Finding(
        "incomplete-profile",
        text,
        "info",
        "high" if blocking or not facts.wall_ns else "medium",
        None,
        evidence,
        (),
        remedies or (Remedy("Record again", _RECAPTURE, "a profile that can answer"),),
        "Record again as said: if the new profile shows the same, nothing had been missing.",
    )
    return Incomplete(finding, decides)


def unexplained(facts: Facts, claims: Claims) -> Finding:
    """The pauses that no cause in the vocabulary explains: dependencies, submission by the driver, the profiler.

    The microsecond between two kernels that wait in the GPU's queue is not one of them: it is the GPU's own.
    """
    idle = facts.idle_ns - sum(claims.idle_ns(id_) for id_ in claims.gaps) - facts.idle("start-latency")
    share = {f"{cause}_share": facts.idle(cause) / facts.wall_ns for cause in _NOT_THE_HOST}
    worst = max(_NOT_THE_HOST, key=facts.idle)
    return Finding(
        "incomplete-profile",
        f"The GPU pauses for reasons that the profile names but cannot explain: mostly {_NOT_THE_HOST[worst]}",
        "info",
        "low",
        ceiling(facts.wall_ns, idle),
        {"unexplained_idle_ns": idle, "gpu_busy_share": facts.busy_share, **share},
        (),
        (
            Remedy(
                "Record which event each stream waits for",
                f"{_RECAPTURE}; add --gpu-metrics-devices=0 to see other programs on the GPU",
                "the waits by name",
            ),
            Remedy(
                "Put dependent work on one stream",
                "remove torch.cuda.Stream() contexts around work that waits for the other stream anyway; close other "
                "programs that use the GPU",
                f"at most {ceiling(facts.wall_ns, idle):.2f}×",
            ),
        ),
        "Run on a single stream, with the GPU to yourself: if the pauses stay, the host makes them.",
    )


#: Idle causes that are not the host's, in words.
_NOT_THE_HOST: Final = {
    "dependency": "queued work that waits for work of another stream or GPU",
    "submission": "queued work that the driver or another program keeps from the GPU",
    "profiler": "the profiler holding the host up",
    "unknown": "work whose launch was not recorded",
}
