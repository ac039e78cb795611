"""The what-if panel of a report: the step time with one, two or all remedies, the remaining budget, and the code."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from warplens.analysis.categories import CATEGORIES
from warplens.diagnosis import Diagnosis
from warplens.diagnosis.rules import rule
from warplens.diagnosis.steptimes import Lane, StepPictures, StepTimes
from warplens.diagnosis.whatif import WhatIf, WhatIfs
from warplens.report import text as fmt
from warplens.report.brief import ways
from warplens.report.document import Block, View, ViewRow, quiet
from warplens.report.jsonout import dumps
from warplens.report.overview.numbers import Numbers
from warplens.report.theme import call_fill, category_fill, part_fill
from warplens.report.verdict import factor

#: Kinds of work below this share of the unchanged step are merged in the bars.
_SMALL: Final = 0.03

_IDLE: Final = "idle"

#: Legend of the colours of the host's calls.
_CALLS: Final = {
    call_fill("launch"): "host: launches",
    call_fill("sync"): "host: waits for the GPU",
    call_fill("allocation"): "host: allocates memory",
}

#: Units that the longest step is divided into; the smallest width of a mark.
_PARTS: Final = 4_000

#: A step that is drawn longer or shorter than its replay by more than this share is labelled so.
_STRETCHED: Final = 0.05


def what_if_blocks(numbers: Numbers) -> Iterator[Block]:
    """The effect of single remedies, of pairs and of all; nothing if it cannot be modelled."""
    diagnosis = numbers.diagnosis
    if diagnosis is None or diagnosis.what_if is None:
        return
    what_if = diagnosis.what_if
    actions = {finding.id: finding.remedies[0].action for finding in diagnosis.findings if finding.remedies}
    unit = "step" if numbers.window.steps else "window"
    rows = []
    for change in what_if.changes:
        together = " + ".join(actions[id_] for id_ in change.findings)
        cells = (together, factor(change.expected), fmt.duration(change.step_ns), _range(change))
        rows.append(ViewRow(_name(change), cells))
    yield View(
        id="what-if-view",
        kind="whatif",
        caption=f"What if: the {unit} after one, two or all remedies",
        alt=f"{_now(what_if, unit)} Each row of the table is one choice; with scripts enabled, check boxes show "
        "the rest.",
        data=panel(diagnosis, what_if, numbers.capture.source, unit),
        heading=("With", "As fast", f"{fmt.capitalised(unit)} after", "its 90 % interval"),
        rows=tuple(rows),
    )
    yield quiet(
        "Modelled, not measured: the host is as fast as expected without a profiler, and work that no remedy "
        "affects takes as long as recorded. One remedy gains what its finding expects; several are replayed together. "
        "Make one change, record again, and compare."
    )


def panel(diagnosis: Diagnosis, what_if: WhatIfs, source: str, unit: str) -> dict[str, Any]:
    """The data for the script of the panel, with numbers formatted as text."""
    ids = [id_ for change in what_if.changes if len(change.findings) == 1 for id_ in change.findings]
    remedies = {finding.id: finding.remedies[0] for finding in diagnosis.findings if finding.id in ids}
    totals = _by_kind(what_if.busy_ns)  # the large ones have a part of their own in the bars
    kinds = [kind for kind, time_ns in totals.items() if time_ns >= _SMALL * what_if.step_ns]
    longest = max(what_if.step_ns, *(change.step_ns for change in what_if.changes))
    return {
        "now": {
            "text": _now(what_if, unit),
            "parts": _parts(what_if.busy_ns, what_if.idle_ns, kinds, longest),
            "step": fmt.duration(what_if.step_ns),
        },
        "unit": unit,
        "remedies": [
            {
                "id": id_,
                "title": f"against {id_}: {rule(id_).limiter}",
                "action": remedies[id_].action,
                "code": "\n".join(ways(remedies[id_].how)),
            }
            for id_ in ids
        ],
        "changes": {
            _name(change): {
                "step_ns": change.step_ns,
                "gain": factor(change.expected),
                "text": f"{fmt.duration(change.step_ns)} per {unit} without a profiler, {_range(change)} "
                "(90 % interval)",
                "parts": _parts(change.busy_ns, change.idle_ns, kinds, longest),
                "step": fmt.duration(change.step_ns),
            }
            for change in what_if.changes
        },
        "ask": f"warplens diagnose {fmt.shell_word(source)} --if",
        "check": f"warplens compare {fmt.shell_word(source)} AFTER",
        **({} if what_if.pictures is None else {"drawn": _packed(what_if.pictures, unit)}),
    }


def _packed(pictures: StepPictures, unit: str) -> dict[str, Any]:
    """The captions of the drawn steps, and the steps as zlib-compressed JSON in Base64.

    A lane is its name, its number of events, and three numbers per mark: distance from the mark before, width (both in
    units of `_PARTS`), and index of its fill.
    """
    steps = {"recorded": pictures.recorded, "now": pictures.now, **pictures.after}
    fills = sorted({_fill(lane, label) for step in steps.values() for lane in step.lanes for label in lane.label})
    used = {call_fill(label) for step in steps.values() for label in step.lanes[0].label}
    unit_ns = max(step.length_ns for step in steps.values()) / _PARTS
    drawn = {
        name: {"width": round(step.length_ns / unit_ns), "lanes": [_lane(lane, fills, unit_ns) for lane in step.lanes]}
        for name, step in steps.items()
    }
    recorded_step, step_end = (
        (f"Step {pictures.step}", ", to the begin of the next") if pictures.step is not None else ("Window", "")
    )
    shortest = fmt.duration(pictures.cell_ns)
    left_out = fmt.plural(pictures.streams_left_out, "stream")
    return {
        "parts": _PARTS,
        "recorded": f"{recorded_step} as recorded, with the profiler: "
        f"{fmt.duration(pictures.recorded.length_ns)} (measured{step_end})",
        "now": f"The same without a profiler, nothing changed: {fmt.duration(pictures.now.length_ns)} (modelled)",
        "after": {
            id_: f"With this remedy, without a profiler: {fmt.duration(step.length_ns)} (modelled){_stretched(step)}"
            for id_, step in pictures.after.items()
        },
        "lengths": {name: step.length_ns for name, step in steps.items()},
        "thinned": f"Calls of the host (its top lane) and GPU work in one {unit}, in one scale. Neighbours "
        f"shorter than {shortest} are one mark, coloured like the longest."
        + (f" {left_out} with less work left out." if pictures.streams_left_out else ""),
        "pair": f"Several remedies together are told by their numbers; a {unit} is drawn for single ones only.",
        "fills": fills,
        "calls": [(title, fill) for fill, title in _CALLS.items() if fill in used],
        "steps": base64.b64encode(zlib.compress(dumps(drawn), 9)).decode(),
    }


def _stretched(step: StepTimes) -> str:
    if abs(step.stretched - 1) <= _STRETCHED:
        return ""
    return f"; drawn {step.stretched:.2f} times as long as the replay gives, to agree with the finding"


def _fill(lane: Lane, label: str) -> str:
    return call_fill(label) if lane.stream is None else _kind(label)[1]


def _lane(lane: Lane, fills: list[str], unit_ns: float) -> tuple[str, int, list[int]]:
    """The name of the lane, its number of calls or GPU work items, and its marks."""
    numbers: list[int] = []
    at = 0
    for start, end, label in zip(lane.start_ns.tolist(), lane.end_ns.tolist(), lane.label, strict=True):
        first = max(round(start / unit_ns), at)
        width = max(round(end / unit_ns) - first, 1)
        numbers += (first - at, width, fills.index(_fill(lane, label)))
        at = first + width
    return "host" if lane.stream is None else f"stream {lane.stream}", lane.pieces, numbers


def _name(change: WhatIf) -> str:
    return "+".join(change.findings)


def _now(what_if: WhatIfs, unit: str) -> str:
    low, high = map(fmt.duration, what_if.step_interval_ns)
    interval = f" ({low} to {high})" if low != high else ""
    return f"Without a profiler one {unit} takes about {fmt.duration(what_if.step_ns)}{interval}."


def _range(change: WhatIf) -> str:
    return " to ".join(map(fmt.duration, change.step_interval_ns))


def _kind(label: str) -> tuple[str, str]:
    """Title and colour token of a kernel category or a copy direction."""
    if label == "graph":
        return "CUDA graphs", "graph"
    if label not in CATEGORIES:
        return "copies and fills", "transfer"
    return fmt.category_title(label), category_fill(label)


def _by_kind(busy_ns: Mapping[str, int]) -> dict[tuple[str, str], int]:
    """The time of each kind of work, the largest first."""
    totals: dict[tuple[str, str], int] = {}
    for label, time_ns in busy_ns.items():
        totals[_kind(label)] = totals.get(_kind(label), 0) + time_ns
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def _parts(
    busy_ns: Mapping[str, int], idle_ns: int, kinds: list[tuple[str, str]], longest: int
) -> list[tuple[str, str, float, str]]:
    """Title, colour token, share of the longest bar and time of each part, from the left."""
    totals = _by_kind(busy_ns)
    rest = sum(time_ns for kind, time_ns in totals.items() if kind not in kinds)
    rows = [(title, fill, totals.get((title, fill), 0)) for title, fill in kinds]
    rows += [("other work", "other", rest), (_IDLE, part_fill("idle", "launch"), idle_ns)]
    return [(title, fill, time_ns / longest, fmt.duration(time_ns)) for title, fill, time_ns in rows if time_ns]
