"""The what-if panel of a report: the step with one or two remedies, the budget that is left, the code, the check."""

from __future__ import annotations

import base64
import shlex
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

#: Kinds of work below this share of the unchanged step are one part of the bar.
_SMALL: Final = 0.03

_IDLE: Final = "idle"

#: What the colours of the host's calls mean, where they are not those of GPU work.
_CALLS: Final = {
    call_fill("launch"): "host: launches",
    call_fill("sync"): "host: waits for the GPU",
    call_fill("allocation"): "host: allocates memory",
}

#: Parts that the longest step is divided into; a mark is as wide as one, or wider.
_PARTS: Final = 4_000

#: A step that is drawn this much longer or shorter than its replay gives is said to be.
_STRETCHED: Final = 0.05


def what_if_blocks(numbers: Numbers) -> Iterator[Block]:
    """What the remedies bring, to be tried one by one and in pairs; nothing where that cannot be modelled."""
    found = numbers.diagnosis
    if found is None or found.what_if is None:
        return
    what_if = found.what_if
    actions = {finding.id: finding.remedies[0].action for finding in found.findings if finding.remedies}
    unit = "step" if numbers.window.steps else "window"
    yield View(
        id="what-if-view",
        kind="whatif",
        caption=f"What if: the {unit} after one or two remedies",
        alt=f"{_now(what_if, unit)} Each row of the table is one choice; with scripts enabled, check boxes show "
        "the rest.",
        data=panel(found, what_if, numbers.capture.source, unit),
        heading=("With", "As fast", "90 % interval", f"{fmt.capitalised(unit)} after"),
        rows=tuple(
            ViewRow(
                _name(each),
                (
                    " + ".join(actions[id_] for id_ in each.findings),
                    factor(each.expected),
                    _range(each),
                    fmt.duration(each.step_ns),
                ),
            )
            for each in what_if.changes
        ),
    )
    yield quiet(
        "Modelled, not measured: the host is as fast as expected without a profiler, and work that no remedy "
        "affects takes as long as recorded. One remedy gains what its finding expects; two are replayed together. "
        "Make one change, record again, and compare."
    )


def panel(found: Diagnosis, what_if: WhatIfs, source: str, unit: str) -> dict[str, Any]:
    """What the script of the panel shows: every number as text, in words that are those of the findings."""
    ids = [id_ for each in what_if.changes if len(each.findings) == 1 for id_ in each.findings]
    remedies = {finding.id: finding.remedies[0] for finding in found.findings if finding.id in ids}
    kinds = _kinds(what_if)
    longest = max(what_if.step_ns, *(each.step_ns for each in what_if.changes))
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
            _name(each): {
                "step_ns": each.step_ns,
                "gain": factor(each.expected),
                "text": f"{fmt.duration(each.step_ns)} per {unit} without a profiler, {_range(each)} (90 % interval)",
                "parts": _parts(each.busy_ns, each.idle_ns, kinds, longest),
                "step": fmt.duration(each.step_ns),
            }
            for each in what_if.changes
        },
        "check": f"warplens compare {shlex.quote(source)} AFTER",
        **({} if what_if.pictures is None else {"drawn": _packed(what_if.pictures, unit)}),
    }


def _packed(found: StepPictures, unit: str) -> dict[str, Any]:
    """What is said of the drawn steps, and the steps: the base64 form of zlib of JSON.

    A lane is its name and numbers in threes: parts since the mark before, parts wide, and the number of its fill.
    """
    steps = {"recorded": found.recorded, "now": found.now, **found.after}
    fills = sorted({_fill(lane, label) for step in steps.values() for lane in step.lanes for label in lane.label})
    used = {call_fill(label) for step in steps.values() for label in step.lanes[0].label}
    part = max(step.length_ns for step in steps.values()) / _PARTS
    drawn = {
        name: {"width": round(step.length_ns / part), "lanes": [_lane(lane, fills, part) for lane in step.lanes]}
        for name, step in steps.items()
    }
    which, until = (f"Step {found.step}", ", to the begin of the next") if found.step is not None else ("Window", "")
    least = fmt.duration(found.cell_ns)
    left_out = fmt.plural(found.streams_left_out, "stream")
    return {
        "parts": _PARTS,
        "recorded": f"{which} as recorded, with the profiler: "
        f"{fmt.duration(found.recorded.length_ns)} (measured{until})",
        "now": f"The same without a profiler, nothing changed: {fmt.duration(found.now.length_ns)} (modelled)",
        "after": {
            id_: f"With this remedy, without a profiler: {fmt.duration(step.length_ns)} (modelled){_stretched(step)}"
            for id_, step in found.after.items()
        },
        "lengths": {name: step.length_ns for name, step in steps.items()},
        "thinned": f"Calls of the host (its top lane) and GPU work in one {unit}, in one scale. Neighbours "
        f"shorter than {least} are one mark, coloured like the longest."
        + (f" {left_out} with less work left out." if found.streams_left_out else ""),
        "pair": f"Two remedies together are told by their numbers; a {unit} is drawn for single ones only.",
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


def _lane(lane: Lane, fills: list[str], part: float) -> tuple[str, int, list[int]]:
    """Its name, how many calls or pieces of work it shows, and its marks."""
    numbers: list[int] = []
    at = 0
    for start, end, label in zip(lane.start_ns.tolist(), lane.end_ns.tolist(), lane.label, strict=True):
        first = max(round(start / part), at)
        width = max(round(end / part) - first, 1)
        numbers += (first - at, width, fills.index(_fill(lane, label)))
        at = first + width
    return "host" if lane.stream is None else f"stream {lane.stream}", lane.pieces, numbers


def _name(change: WhatIf) -> str:
    return "+".join(change.findings)


def _now(what_if: WhatIfs, unit: str) -> str:
    low, high = map(fmt.duration, what_if.step_interval_ns)
    about = f" ({low} to {high})" if low != high else ""
    return f"Without a profiler one {unit} takes about {fmt.duration(what_if.step_ns)}{about}."


def _range(change: WhatIf) -> str:
    return " to ".join(map(fmt.duration, change.step_interval_ns))


def _kind(label: str) -> tuple[str, str]:
    """Title and colour token of a category of kernels, or of a direction of copies."""
    if label == "graph":
        return "CUDA graphs", "graph"
    if label not in CATEGORIES:
        return "copies and fills", "transfer"
    return fmt.category_title(label), category_fill(label)


def _kinds(what_if: WhatIfs) -> list[tuple[str, str]]:
    """The kinds of work that are parts of the bars, the largest first; the others are one."""
    totals = _by_kind(what_if.busy_ns)
    return [kind for kind, spent in totals.items() if spent >= _SMALL * what_if.step_ns]


def _by_kind(busy_ns: Mapping[str, int]) -> dict[tuple[str, str], int]:
    totals: dict[tuple[str, str], int] = {}
    for label, spent in busy_ns.items():
        totals[_kind(label)] = totals.get(_kind(label), 0) + spent
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def _parts(
    busy_ns: Mapping[str, int], idle_ns: int, kinds: list[tuple[str, str]], longest: int
) -> list[tuple[str, str, float, str]]:
    """Title, colour token, share of the longest bar and time of each part, from the left."""
    totals = _by_kind(busy_ns)
    rest = sum(spent for kind, spent in totals.items() if kind not in kinds)
    rows = [(title, fill, totals.get((title, fill), 0)) for title, fill in kinds]
    rows += [("other work", "other", rest), (_IDLE, part_fill("idle", "launch"), idle_ns)]
    return [(title, fill, spent / longest, fmt.duration(spent)) for title, fill, spent in rows if spent]
