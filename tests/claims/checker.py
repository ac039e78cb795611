"""Reads every sentence and table of an answer for numbers, and tells where they contradict each other.

Three kinds of checks. Of the JSON: parts sum to their wholes, shares are shares, findings keep to the legend. Of the
sentences: each number with a unit is one of the JSON, rounded as people read it, or follows from two of them. And
across commands: what several of them say of the same thing is the same.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from tests.claims.pages import Page
from tests.claims.reading import Reading
from tests.claims.sentences import check_texts, is_number, leaves, numbers_of
from warplens.diagnosis.findings import CONFIDENCES, EVIDENCE_UNITS, SEVERITIES
from warplens.diagnosis.rules import RULES
from warplens.diagnosis.rules.copies import BlockingCopy
from warplens.diagnosis.rules.waits import HostSync
from warplens.diagnosis.thresholds import Thresholds

#: From these gains on a finding is a warning, and critical; what is beside them is named in the legend of its table.
WARNING: Final = 1.10
CRITICAL: Final = 1.50
#: Beyond or below its share by these factors, a gain has a reason in the sentence.
BEYOND_SHARE: Final = 1.05 + 1e-9
BELOW_SHARE: Final = 1.10 + 1e-9
#: A GPU is busy from here on.
BUSY: Final = 0.90
#: Each of the headroom's five levels is left out of its strip below 0.05 %.
_SLIVERS: Final = 5 * 0.0005
#: Factors and shares are shown with two or three digits, percentages with one after the point.
ROUNDING: Final = 0.006
_PERCENT: Final = 0.05001

#: Which idle causes and which work of the time budget a finding may claim. What goes beyond is a model's.
OWN_TIME: Final[Mapping[str, tuple[str, ...]]] = {
    "launch-overhead": ("idle/launch", "idle/graph-launch"),
    "host-sync": ("idle/synchronization", "idle/refill", "idle/blocking-copy", "copy/device-to-host"),
    "host-stall": ("idle/host",),
    "allocator-churn": ("idle/allocation",),
    "blocking-copy": ("idle/blocking-copy", "copy/device-to-host", "copy/host-to-device"),
    "exposed-communication": ("communication/*",),
}
#: The GPU's own latency after a pause of the host is that pause's.
_LATENCY: Final = "idle/start-latency"

#: Whose cause a modelled change takes away.
CHANGES: Final[Mapping[str, str]] = {
    "no-synchronization": "host-sync",
    "async-copies": "blocking-copy",
    "cached-allocation": "allocator-churn",
    "no-host-stall": "host-stall",
    "cuda-graph": "launch-overhead",
}

#: What a window says of steps that were only inferred.
INFERRED: Final = "they may be parts of a step"
#: Loops around read-backs claim the pauses of their launches, too.
LOOPED: Final = "looped_kernels_per_step"

#: What makes a host slow: it waits, allocates, or launches for each tensor, part or layer anew.
MAKES_LAUNCHES: Final = (
    *("host-sync", "allocator-churn", "unfused-optimizer", "per-expert-loop", "recomputation", "unused-gradients"),
    "unused-results",
)
#: Work that nothing takes, which comes before work that is done slowly.
NEEDLESS: Final = ("unused-gradients", "unused-results", "recomputation")
#: Pauses as long as a hundred launches, which are none of issuing them.
APART: Final = "stalls_apart_share"
#: A host that waits after every few launches, and so often a step, cannot get ahead of its GPU.
CROWDED: Final = "after every few launches"
#: A loop of many small kernels, which comes before pauses that are not much longer than its launches.
TURNS: Final = "turns_per_step"
#: The remedy of rows whose indices are checked, sorted and scanned before each addition, in launches of their own.
SORTS_FOR_ROWS: Final = "Add rows without sorting their indices"

#: Shares of a change, which may be negative or larger than it.
_OF_A_CHANGE: Final = ("data.explanation", "data.rows", "data.verdict", "data.phases", "data.transfers")

#: Moments, which may lie before the zero of the recording's clock.
_TIMES: Final = ("window_ns", "origin_ns", "start_ns", "end_ns")

#: Times from one moment to another, which clocks that are apart make negative; a note says so.
_BETWEEN: Final = ("lead_median_ns", "queue_median_ns", "queue_mean_ns", "queue_min_ns", "queue_total_ns")

#: Whole → what lies within it, in the same row.
_WITHIN: Final = (
    ("gpu_ns", ("gpu_self_ns", "gpu_exclusive_ns", "inferred_ns")),
    ("host_ns", ("host_self_ns",)),
    ("copy_ns", ("overlapped_ns", "exposed_ns")),
    ("product_ns", ("tensor_core_ns", "vector_ns", "unknown_ns")),
    ("total_ns", ("product_ns", "categorised_ns", "precision_ns", "same_thread_ns", "operator_ns", "linked_ns")),
    ("wall_ns", ("busy_ns", "idle_ns", "claimed_ns")),
    ("duration_ns", ("busy_ns", "idle_ns", "hidden_ns", "claimed_ns")),
    ("launches", ("matched", "queued")),
    ("gpu_busy_ns", ("hidden_ns",)),
    ("flops", ("model_flops", "matmul_flops")),
    ("hfu", ("mfu",)),
    ("window_ns", ("busy_ns",)),
)
#: Rows of these tables are parts of one whole, so that their shares are at most 1 together.
_EXCLUSIVE: Final = ("kernels", "categories", "precisions", "phases", "copies", "api")


def check(pages: Sequence[Page]) -> Reading:
    """Read the answers about one profile, or one comparison."""
    reading = Reading()
    known = set().union(*map(numbers_of, pages))
    for page in pages:
        _check_numbers(reading, page)
        check_texts(reading, page, known)
        if page.command == "headroom":
            _check_headroom(reading, page.data, page.command)
        elif page.command == "compare":
            _check_comparison(reading, page.data)
    by_command = {page.command: page for page in pages}
    if {"diagnose", "report", "headroom"} <= by_command.keys():
        named = [by_command[name].data for name in ("diagnose", "report", "headroom")]
        _check_diagnosis(reading, *named, by_command["report"].texts.values())
        _check_across(reading, *named)
    return reading


# --- Numbers of JSON -------------------------------------------------------------------------------------------------


def _objects(value: Any, path: str = "data") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict):
        yield path, value
        for key, inner in value.items():
            yield from _objects(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from _objects(inner, path)


def _check_numbers(reading: Reading, page: Page) -> None:
    for path, key, value in leaves(page.data):
        if not is_number(value):
            continue
        is_share = key == "share" or key.endswith("_share")
        if is_share and not path.startswith(_OF_A_CHANGE if page.command == "compare" else ("nothing",)):
            reading.expect(-1e-9 <= value <= 1 + 1e-9, "shares lie from 0 to 1", f"{page.command} {path}", value, "0–1")
        elif key.endswith("_ns") and key not in _TIMES + _BETWEEN and page.command != "compare":
            reading.expect(value >= 0, "no time is negative", f"{page.command} {path}", value, "0")
    for path, row in _objects(page.data):
        _check_row(reading, f"{page.command} {path}", row)
    for name in _EXCLUSIVE:
        rows = page.data.get(name, {}).get("rows", ()) if isinstance(page.data.get(name), dict) else ()
        shares = [row["share"] for row in rows if row.get("share") is not None]
        if page.command == "report" and shares:
            reading.at_most("parts are at most their whole", f"report {name}", sum(shares), 1, 1e-6)


def _check_row(reading: Reading, where: str, row: Mapping[str, Any]) -> None:
    for whole, parts in _WITHIN:
        for part in parts:
            if is_number(row.get(whole)) and is_number(row.get(part)):
                at, slack = f"{where} {part} of {whole}", 1e-9 * row[whole]
                reading.at_most("a part lies within its whole", at, row[part], row[whole], slack)
    for prefix in {key.removesuffix("median_ns") for key in row if key.endswith("median_ns")}:
        found = [row.get(f"{prefix}{what}_ns") for what in ("min", "median", "mean", "max")]
        known = [float(each) for each in found if each is not None]
        if len(known) == len(found):
            least, median, mean, most = known
            ordered = least <= median <= most and least * (1 - 1e-9) <= mean <= most * (1 + 1e-9)
            said = (least, median, mean, most)
            reading.expect(ordered, "least ≤ median, mean ≤ most", f"{where} {prefix}", said, "")
    if is_number(row.get("total_ns")) and is_number(row.get("mean_ns")) and row.get("calls"):
        product, total = row["mean_ns"] * row["calls"], row["total_ns"]
        reading.same("mean × calls is the total", where, product, total, 1e-6 * total + 1)
    if is_number(row.get("busy_ns")) and is_number(row.get("idle_ns")):
        whole = row.get("duration_ns", row.get("wall_ns"))
        if whole is not None:
            reading.same("busy and idle are the whole", where, row["busy_ns"] + row["idle_ns"], whole)


# --- Findings --------------------------------------------------------------------------------------------------------


def _gain(finding: Mapping[str, Any]) -> float | None:
    """The number by which findings are ranked: what the first remedy brings, else the most that one can."""
    expected: float | None = finding["expected"]
    return finding["bound"] if expected is None else expected


def _rounding(factor: float) -> float:
    """How far a factor may be from the number that it tells: three digits are told."""
    return ROUNDING if factor < 10 else 10 * ROUNDING if factor < 100 else 100 * ROUNDING


_DESCRIBES: Final = frozenset(rule.id for rule in RULES if rule.describes)
_TOGETHER: Final = re.compile(
    r" (?:The causes hide each other: w|W)ithout (?P<others>[\w, -]+) as well, it is about [\d.]+× as fast\."
)
_FACTOR: Final = re.compile(r"(?<![\d.,])(\d[\d,]*(?:\.\d+)?)×")
_SHARE: Final = re.compile(r"([−-]?<?\d[\d,]*(?:\.\d+)?) %")


def _factors(text: str) -> list[float]:
    return [float(found.replace(",", "")) for found in _FACTOR.findall(text)]


def _shares(text: str) -> list[float]:
    return [float(found.strip("<").replace("−", "-").replace(",", "")) / 100 for found in _SHARE.findall(text)]


def _check_diagnosis(
    reading: Reading,
    diagnosis: Mapping[str, Any],
    report: Mapping[str, Any],
    headroom: Mapping[str, Any],
    texts: Iterable[str],
) -> None:
    findings = diagnosis["findings"]
    parts = _budget_parts(report)
    coverage = diagnosis["coverage"]
    steps = coverage["steps"]
    sure = steps > 0 and INFERRED not in diagnosis["window"]["how"]
    for finding in findings:
        _check_finding(reading, finding, steps, sure)
        _check_evidence(reading, finding, coverage, parts)
    check_order(reading, findings)
    _check_headline(reading, diagnosis, parts)
    _check_share_and_gain(reading, diagnosis, texts)
    _check_saturated(reading, diagnosis)
    _check_predictions(reading, diagnosis, headroom)
    _check_coverage(reading, diagnosis, report)


#: A rule that is not always sure says from where on it warns, or that it may inform only.
_WARNS_FROM: Final = re.compile(r"warning from (\d\.\d+)×")


def _severities(id_: str, gain: float, sure: bool) -> set[str]:
    """By the legend; a rule's own words may lower a gain to an information, steps that are none a grave one."""
    rule = next(rule for rule in RULES if rule.id == id_)
    words = f"{rule.raised_when} {rule.claimed}"
    known = {"critical" if gain >= CRITICAL and sure else "warning" if gain >= WARNING else "info"}
    least = max([float(factor) for factor in _WARNS_FROM.findall(words)], default=WARNING)
    return known | ({"info"} if gain < least or "nformational" in words else set())


def _check_finding(reading: Reading, finding: Mapping[str, Any], steps: int, sure: bool) -> None:
    where = f"diagnose {finding['id']}"
    gain, bound, expected = _gain(finding), finding["bound"], finding["expected"]
    if expected is not None:
        low, high = finding["expected_interval"]
        inside = low <= expected <= high
        reading.expect(inside, "the interval holds what is expected", where, expected, (low, high))
        if bound is not None:
            reading.at_most("nothing is expected beyond the bound", where, high, bound, 1e-9)
    _check_remedies(reading, finding)
    if bound is not None:
        reading.at_most("a bound is a gain", where, 1, bound)
        for remedy in finding["remedies"]:
            at = f"{where} ({remedy['action']})"
            for factor in _factors(remedy["expected"]):
                reading.at_most("no remedy promises more than the bound", at, factor, bound, _rounding(factor))
            for factor in remedy["gain_interval"] or ():
                reading.at_most("no remedy promises more than the bound", at, factor, bound, 1e-9)
        for factor in _factors(finding["title"]):
            reading.at_most("no title beyond the bound", where, factor, bound, _rounding(factor))
    severity = finding["severity"]
    if gain is not None and finding["id"] not in _DESCRIBES:
        allowed = _severities(finding["id"], gain, sure)
        if steps == 1 and "critical" in allowed:
            allowed = allowed | {"warning"}  # for what the host did in that step alone
        said = f"{gain:.3f}× in {steps} steps: {' or '.join(allowed)}"
        reading.expect(severity in allowed, "severity goes by the gain", where, severity, said)
    reading.expect(severity != "critical" or sure, "nothing is critical without steps", where, severity, steps)


def _check_remedies(reading: Reading, finding: Mapping[str, Any]) -> None:
    """The first gain of the remedies is that of the finding, and each lies in its own interval."""
    known = [remedy for remedy in finding["remedies"] if remedy["gain"] is not None]
    if known and finding["expected"] is not None:
        rule, slack = "the first remedy has the gain of its finding", 1e-9 * finding["expected"]
        reading.same(rule, f"diagnose {finding['id']}", known[0]["gain"], finding["expected"], slack)
    for remedy in known:
        (low, high), at = remedy["gain_interval"], f"diagnose {finding['id']} ({remedy['action']})"
        inside = low <= remedy["gain"] <= high
        reading.expect(inside, "the interval holds the gain of a remedy", at, remedy["gain"], (low, high))


def check_order(reading: Reading, findings: Sequence[Mapping[str, Any]]) -> None:
    """By severity, then what costs before what describes, then by gain; the verdict stands first: the largest gain,
    or what makes the host slow where its pace has that."""
    keys = [(SEVERITIES.index(one["severity"]), one["id"] in _DESCRIBES, -(_gain(one) or 0.0)) for one in findings[1:]]
    for (before, first), (after, second) in pairwise(zip(keys, findings[1:], strict=True)):
        said = f"{first['id']} {_gain(first)}, {second['id']} {_gain(second)}"
        reading.expect(before <= after, "findings are ranked by gain", "diagnose findings", said, "falling")
    worth = [one for one in findings if one["severity"] != "info"]
    if worth and findings[0]["severity"] != "info":
        best = _to_mend(worth)
        gain, most = _gain(findings[0]) or 0.0, _gain(best) or 0.0
        unsorted = any(each["action"] == SORTS_FOR_ROWS for each in findings[0].get("remedies", ()))
        first, slow = findings[0], best["id"] in ("launch-overhead", "host-stall")
        seen = first.get("evidence", {})
        looped, handles = slow and first["id"] == "host-sync" and LOOPED in seen, "handling_share" in seen
        if best["id"] == "launch-overhead" and first["id"] == "host-sync" and CROWDED in first.get("title", ""):
            most = 1.0  # no host gets ahead while it waits that often, whatever that costs under the profiler
        elif looped or (best["id"] == "launch-overhead" and (first["id"] in MAKES_LAUNCHES or unsorted or handles)):
            # What makes the host slow is named before its pace, from this part on of what that would save.
            most = 1 / (1 - Thresholds().specific_share * (1 - 1 / most))
        elif first["id"] in NEEDLESS or (slow and (APART in seen or TURNS in seen)):
            most = 1 / (1 - Thresholds().dominant_share * (1 - 1 / most))
        elif _unsureness(first) < _unsureness(best):
            most = 1 + 0.9 * (most - 1)  # of gains within a tenth, the surer one comes first
        at = f"{first['id']} before {best['id']}"
        reading.at_most("the verdict has the largest gain", at, most, gain, 1e-9)


def _unsureness(finding: Mapping[str, Any]) -> int:
    return CONFIDENCES.index(finding.get("confidence", CONFIDENCES[0]))


def _to_mend(findings: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """What has the largest gain; what makes the same work faster comes before what has to be given more of it."""

    def weight(finding: Mapping[str, Any]) -> float:
        return _gain(finding) or 1.0

    best = max(findings, key=weight)
    faster = max((one for one in findings if not _gives_more(one)), key=weight, default=None)
    if faster is None or not _gives_more(best):
        return best
    least = 1 / (1 - Thresholds().dominant_share * (1 - 1 / weight(best)))
    return faster if weight(faster) >= least else best


def _gives_more(finding: Mapping[str, Any]) -> bool:
    """Whether its remedy is to give the GPU more work at a time."""
    return finding["id"] in ("small-kernels", "weight-bound") and "passes_per_step" not in finding.get("evidence", {})


def _check_headline(reading: Reading, diagnosis: Mapping[str, Any], parts: Mapping[str, float]) -> None:
    headline, findings = diagnosis["headline"], diagnosis["findings"]
    if not findings:
        return
    first, verdict = findings[0], diagnosis["verdict"]
    reading.expect(verdict == first["id"], "the first finding is the verdict", "headline", verdict, first["id"])
    # Other sentences may tell what remedies bring together, and the larger gain of another finding.
    if (together := _TOGETHER.search(headline)) is not None:
        headline, ids = headline.replace(together[0], ""), {verdict, *re.split(", | and ", together["others"])}
        changes = (diagnosis["what_if"] or {"changes": []})["changes"]
        known = [change["expected"] for change in changes if {*change["findings"]} == ids]
        fits = any(abs(factor - number) <= _rounding(factor) for factor in _factors(together[0]) for number in known)
        reading.expect(fits, "the headline has the gain of these remedies together", "headline", together[0], known)
    limit, _, before = headline.partition(" It comes before ")
    named = next((finding for finding in findings if before.startswith(f"{finding['id']} (")), first)
    for text, finding, whose in ((limit, first, "first"), (before, named, "named")):
        shown = {number for number in (finding["expected"], finding["bound"]) if number is not None}
        for factor in _factors(text):
            fits = any(abs(factor - number) <= _rounding(factor) for number in shown)
            reading.expect(fits, f"the headline has the {whose} finding's number", "headline", headline, sorted(shown))
    shares = _shares(headline)
    own = _own_time(first)
    known_share = diagnosis["headline_share"]
    if shares and known_share is not None:
        reading.same("the headline has its own share", headline, 100 * shares[0], 100 * known_share, _PERCENT)
    # What a loop runs is work, not idle time; pauses between copies of pieces or a set are the host's in the budget.
    looped = first.get("title") in {
        *(variant.title for variant in (HostSync.checked, HostSync.looped, HostSync.issued)),
        *(BlockingCopy.variants[each].title for each in ("pieces", "fetched-set", "sent-set", "returning")),
    }
    if own and shares and parts and "modelled" not in headline and not looped:
        known = _own_share(parts, own)
        reading.at_most("a cause has at most its time in the budget", headline, shares[0], known, 0.0006)
    if "GPU had no work" in headline and shares and parts:
        idle = sum(share for part, share in parts.items() if part.startswith("idle/"))
        reading.at_most("idle is at most the idle time", headline, shares[0], idle, 0.0006)
    if "othing to fix" in headline:
        for finding in findings:
            gain = _gain(finding) or 0.0
            fits = gain < WARNING or finding["id"] in _DESCRIBES
            where = f"diagnose {finding['id']}"
            reading.expect(fits, "nothing is wrong only if nothing is to be gained", where, gain, headline)
    coverage = diagnosis["coverage"]
    busy = coverage["busy_ns"] / coverage["wall_ns"] if coverage["wall_ns"] else 0
    for said in re.findall(r"GPU is busy for ([\d.]+) %", headline):
        reading.same("busy is busy", "headline", float(said), 100 * busy, _PERCENT)


def _check_share_and_gain(reading: Reading, diagnosis: Mapping[str, Any], texts: Iterable[str]) -> None:
    """The gain is that of removing the share, or a sentence says why it is not: by Amdahl's law, 1 / (1 − share)."""
    first, share = diagnosis["findings"][0] if diagnosis["findings"] else {}, diagnosis["headline_share"]
    gain = first.get("expected")
    if gain is None or share is None:
        return
    headline, saved = diagnosis["headline"], 1 - 1 / gain
    modelled = first["evidence"].get("launches_behind_ns", 0) / diagnosis["coverage"]["wall_ns"]
    told = share + (modelled if "by a model another" in headline else 0.0)
    is_more, is_less = "remedy saves more" in headline, "remedy saves a part of it" in headline
    is_of_profiler = f"whose cost is part of the {100 * share:.1f} %" in " ".join(texts)
    fits = is_more or gain * (1 - told) <= BEYOND_SHARE
    reading.expect(fits, "a gain beyond its share has a reason", headline, gain, f"{saved:.3f} of the time")
    fits = is_less or is_of_profiler or BELOW_SHARE * gain * (1 - share) >= 1
    reading.expect(fits, "a gain below its share has a reason", headline, gain, f"{saved:.3f} of the time")
    fits = (not is_more or saved > share) and (not is_less or saved < share)
    reading.expect(fits, "a remedy saves more or less as the headline says", headline, saved, share)


def _own_time(finding: Mapping[str, Any]) -> tuple[str, ...]:
    own = OWN_TIME.get(finding["id"], ())
    return (*own, *OWN_TIME["launch-overhead"]) if LOOPED in finding["evidence"] else own


def _own_share(parts: Mapping[str, float], own: Sequence[str]) -> float:
    groups = {name.removesuffix("*") for name in own if name.endswith("*")}
    named = sum(
        share for part, share in parts.items() if part in own or any(part.startswith(group) for group in groups)
    )
    return named + (parts.get(_LATENCY, 0.0) if any(name.startswith("idle/") for name in own) else 0.0)


def _check_saturated(reading: Reading, diagnosis: Mapping[str, Any]) -> None:
    saturated = next((one for one in diagnosis["findings"] if one["id"] == "saturated"), None)
    if saturated is None:
        return
    evidence = saturated["evidence"]
    busy = evidence["gpu_busy_share"] + evidence.get("between_queued_kernels_share", 0.0)
    reading.at_most("saturated means busy for 90 %", "diagnose saturated", BUSY, busy, 1e-9)
    for finding in diagnosis["findings"]:
        if finding["id"] not in _DESCRIBES:
            gain, where = _gain(finding) or 0.0, f"diagnose {finding['id']}"
            reading.expect(gain < WARNING, "saturated means nothing is worth 1.10×", where, gain, WARNING)


def _check_predictions(reading: Reading, diagnosis: Mapping[str, Any], headroom: Mapping[str, Any]) -> None:
    bounds = {one["id"]: one["bound"] for one in diagnosis["findings"]}
    devices = headroom["devices"]
    for item in diagnosis["predictions"]:
        where = f"diagnose prediction {item['change']}"
        gain, measured, predicted = item["speedup"], item["measured_ns"], item["predicted_ns"]
        if predicted:
            ratio = measured / predicted
            reading.same("a gain is measured over predicted", where, gain, ratio, 1e-3 * ratio)
        reading.at_most("a change that is offered helps", where, predicted, measured, 1e-3 * measured)
        bound = bounds.get(CHANGES.get(item["change"], ""))
        if bound is not None:
            reading.at_most("no prediction beyond a bound", where, gain, bound, ROUNDING)
        if len(devices) == 1 and diagnosis["window"]["kind"] != "range":
            known = devices[0]["step_ns"]
            reading.same("a step takes as long wherever it is measured", where, measured, known, 1e-3 * known)


def _check_coverage(reading: Reading, diagnosis: Mapping[str, Any], report: Mapping[str, Any]) -> None:
    coverage, budgets = diagnosis["coverage"], report["budget"]["devices"]
    for key, own in (("wall_ns", "duration_ns"), ("busy_ns", "busy_ns"), ("idle_ns", "idle_ns")):
        known = sum(budget[own] for budget in budgets)
        reading.same("the diagnosis rests on the budget", f"diagnose coverage {key}", coverage[key], known)
    counted = len(diagnosis["window"]["steps"])
    reading.same("steps are counted once", "coverage", coverage["steps"], counted)
    wall = coverage["wall_ns"]
    for phase in diagnosis["per_phase"]:
        where = phase["phase"]
        reading.same("a share is the part over the whole", where, phase["share"], phase["wall_ns"] / wall, 1e-9)
    total = sum(phase["wall_ns"] for phase in diagnosis["per_phase"])
    reading.at_most("phases lie within the window", "per_phase", total, wall)


#: Of a finding's evidence: share → the time that it is of the window.
_SAME_AS: Final = {
    "idle_share": "idle_ns", "hidden_share": "hidden_ns", "exposed_share": "exposed_ns",
    "products_share": "products_ns", "memory_kernels_share": "memory_kernels_ns",
    "off_tensor_cores_share": "off_tensor_cores_ns",
    "float64_share": "float64_ns",
}  # fmt: skip


def _check_evidence(
    reading: Reading, finding: Mapping[str, Any], coverage: Mapping[str, Any], parts: Mapping[str, float]
) -> None:
    wall, steps = coverage["wall_ns"], max(1, coverage["steps"])
    evidence, where = finding["evidence"], f"diagnose {finding['id']}"
    declared = next(rule.evidence for rule in RULES if rule.id == finding["id"])
    for name, value in evidence.items():
        has_unit = any(name.endswith(ending) for ending in (*EVIDENCE_UNITS, "_per_wait"))
        reading.expect(has_unit, "evidence names its unit", f"{where} {name}", name, tuple(EVIDENCE_UNITS))
        # What one rank has beyond the others may be less than nothing.
        fits = value >= 0 or name.startswith("excess_")
        reading.expect(fits, "no evidence is negative", f"{where} {name}", value, 0)
        reading.expect(name in declared, "evidence is declared", f"{where} {name}", name, tuple(declared))
        if name.endswith("_ns") and not name.endswith("median_ns") and wall:
            reading.at_most("a part lies within the window", f"{where} {name}", value, wall)
        if name.endswith("_ns_per_step") and wall and "call" not in name:
            reading.at_most("a part lies within the window", f"{where} {name}", value * steps, wall, 1e-9 * wall)
    for share, time in _SAME_AS.items():
        if share in evidence and time in evidence and wall:
            known, at = evidence[time] / wall, f"{where} {share}"
            reading.same("a share is the part over the whole", at, evidence[share], known, 1e-9)
    if "gpu_busy_share" in evidence and wall:
        reading.same("busy is busy", where, evidence["gpu_busy_share"], coverage["busy_ns"] / wall, 1e-9)
    if evidence.get("idle_share") is not None and parts:
        idle, at = evidence["idle_share"], f"{where} idle_share"
        if own := _own_time(finding):
            reading.at_most("a cause has at most its time in the budget", at, idle, _own_share(parts, own), 1e-9)
        reading.at_most("idle is at most the idle time", at, idle, coverage["idle_ns"] / wall, 1e-9)


# --- Budgets ---------------------------------------------------------------------------------------------------------


def _budget_parts(report: Mapping[str, Any]) -> dict[str, float]:
    """Share of the wall time of all GPUs by `group/part`."""
    devices = report["budget"]["devices"]
    whole = sum(budget["duration_ns"] for budget in devices)
    parts: dict[str, float] = defaultdict(float)
    for budget in devices:
        for row in budget["rows"]:
            parts[f"{row['group']}/{row['part']}"] += row["time_ns"] / whole if whole else 0.0
    return parts


def _check_headroom(reading: Reading, data: Mapping[str, Any], command: str) -> None:
    rows = data.get("rows")
    for device in data["devices"]:
        mine = rows if rows is None else [row for row in rows if row["device"] == device["device"]]
        mine = device["parts"]["rows"] if mine is None else mine
        where = f"{command} GPU {device['device']}"
        for key, known in (("time_ns", device["duration_ns"]), ("step_ns", device["step_ns"])):
            reading.same("parts sum to the whole", f"{where} {key}", sum(row[key] for row in mine), known)
        left = [device["duration_ns"], *device["after"].values()]
        for before, after in pairwise(left):
            reading.at_most("each step down leaves less", where, after, before)
        limit = sum(row["time_ns"] for row in mine if row["level"] == "limit")
        reading.same("the limit is what is left", where, limit, left[-1])
        for row in mine:
            at = f"{where} {row['level']}/{row['part']}"
            known = row["time_ns"] / device["duration_ns"] if device["duration_ns"] else 0.0
            reading.same("a share is the part over the whole", at, row["share"], known, 1e-6)
            may = row["level"] == "idle" or (row["level"] == "limit" and row["part"].startswith("no model"))
            fits = may or row["how"] != "measured"
            reading.expect(fits, "a model is not called measured", at, row["how"], "modelled")
        for group in device["groups"]["rows"]:
            at, measured = f"{where} {group['name']}", group["measured_ns"]
            losses = sum(value for key, value in group.items() if key.endswith("_loss_ns"))
            left = measured - group["limit_ns"]
            reading.same("losses lead from measured to the limit", at, losses, left, 8)
            roof, above = group["roof_ns"], group["roof_loss_ns"]
            reading.same("the roof is measured without what is above it", at, roof, measured - above, 2)
            if group["theoretical_ns"] is not None:
                reading.at_most("no roof beyond the data sheet", at, group["theoretical_ns"], roof, 2)


def _check_across(
    reading: Reading, diagnosis: Mapping[str, Any], report: Mapping[str, Any], headroom: Mapping[str, Any]
) -> None:
    """What several commands say of one thing."""
    other = report["diagnosis"]
    for key in ("verdict", "headline", "coverage", "predictions", "per_phase"):
        reading.expect(diagnosis[key] == other[key], "commands agree", key, diagnosis[key], other[key])
    for one, same in zip(diagnosis["findings"], other["findings"], strict=False):
        reading.expect(one == same, "commands agree", f"finding {one['id']}", one, same)
    reading.same("commands agree", "findings", len(diagnosis["findings"]), len(other["findings"]))
    for key in ("start_ns", "end_ns", "steps"):
        known = report["window"][key]
        for page in (diagnosis, headroom):
            said = page["window"][key]
            reading.expect(said == known, "commands speak of one window", key, said, known)
    if report.get("headroom") is not None:
        _check_headroom(reading, report["headroom"], "report")
        told = {one["device"]: one for one in report["headroom"]["devices"]}
        for device in headroom["devices"]:
            for key in ("duration_ns", "step_ns", "after", "mfu", "hfu", "to_roof_share", "known_share"):
                same = told[device["device"]][key]
                reading.expect(device[key] == same, "commands agree", f"headroom {key}", device[key], same)
    below = next(
        (one["evidence"].get("above_roof_share") for one in diagnosis["findings"] if one["id"] == "below-roof"), None
    )
    if below is not None:
        whole = sum(device["duration_ns"] for device in headroom["devices"])
        roof = sum(row["time_ns"] for row in headroom["rows"] if row["level"] == "roof") / whole
        reading.same("time above the practical roof is the headroom's", "diagnose below-roof", below, roof, 1e-6)
    _check_first_screen(reading, report)
    _check_moments(reading, report)
    _check_idle(reading, report, headroom)


def _check_first_screen(reading: Reading, report: Mapping[str, Any]) -> None:
    """The strips split the same step: the budget without a remainder, the headroom but for slivers."""
    budgets = {budget["device"]: budget for budget in report["budget"]["devices"]}
    steps = max(1, len(report["window"]["steps"]))
    for strip in report["strips"]:
        where, whole = f"report strip {strip['strip']}", budgets[strip["device"]]["duration_ns"] / steps
        shares, total = (sum(row[key] for row in strip["rows"]) for key in ("share", "time_ns"))
        exact = strip["strip"] == "budget"
        least = 1.0 if exact else 1.0 - _SLIVERS
        fits = least - 1e-6 <= shares <= 1 + 1e-6 or not whole
        reading.expect(fits, "parts sum to the whole", f"{where} share", shares, 1)
        fits = least * whole - 8 <= total <= whole + 8
        reading.expect(fits, "parts sum to the whole", f"{where} time_ns", total, whole)


def _check_moments(reading: Reading, report: Mapping[str, Any]) -> None:
    """The worst moments belong to findings, lie in the window, and claim no more than their finding may."""
    window, timeline = report["window"], report["timeline"]
    found = {finding["id"] for finding in report["diagnosis"]["findings"]}
    claimed = 0
    for moment in timeline["moments"]["rows"]:
        where = f"report moment of {moment['finding']}"
        reading.expect(moment["finding"] in found, "a moment is of a finding", where, moment["finding"], sorted(found))
        span, known = (moment["start_ns"], moment["end_ns"]), (window["start_ns"], window["end_ns"])
        inside = known[0] <= span[0] < span[1] <= known[1]
        reading.expect(inside, "a moment lies within the window", where, span, known)
        links = timeline["origin_ns"] + moment["from_ns"]
        reading.same("links count from the first event", where, links, span[0])
        claimed += moment["claimed_ns"]
    whole = report["diagnosis"]["coverage"]["claimed_ns"]
    reading.at_most("a part lies within its whole", "report moments", claimed, whole, 1e-9 * whole)


def _check_idle(reading: Reading, report: Mapping[str, Any], headroom: Mapping[str, Any]) -> None:
    for budget in report["budget"]["devices"]:
        whole = budget["duration_ns"]
        reading.same("parts sum to the whole", "report budget", sum(row["time_ns"] for row in budget["rows"]), whole)
        mine = {
            row["part"]: row["time_ns"]
            for row in headroom["rows"]
            if row["device"] == budget["device"] and row["level"] == "idle"
        }
        for row in budget["rows"]:
            part, time = row["part"], row["time_ns"]
            if row["share"] is not None and whole:
                reading.same("a share is the part over the whole", f"budget {part}", row["share"], time / whole, 1e-9)
            if row["group"] == "idle":
                reading.same("budget and headroom have the same idle time", part, mine.get(part, 0), time)
        copies = sum(row["time_ns"] for row in budget["rows"] if row["group"] == "copy")
        linked = mine.get("exposed-copies", 0)
        reading.at_most("exposed copies are copies of the budget", "headroom", linked, copies)


# --- Comparisons -----------------------------------------------------------------------------------------------------

#: Calls lie elsewhere than the work that they launch: of few steps, some of one more belong to them.
_CALLS_LIE_ELSEWHERE: Final = 1.1


def _check_comparison(reading: Reading, data: Mapping[str, Any]) -> None:
    if data.get("kind") != "traces":
        return
    wall = data["wall"]
    for key in ("baseline_ns", "variant_ns", "change_ns"):
        total = sum(row.get(key, row.get("variant_ns", 0) - row.get("baseline_ns", 0)) for row in data["rows"])
        within = abs(wall.get("residual_ns") or 0.0) + 1e-6 * abs(wall["baseline_ns"]) + 1
        reading.same("parts sum to the whole", f"compare {key}", total, wall[key], within)
    change = wall["variant_ns"] - wall["baseline_ns"]
    reading.same("a change is the difference", "compare wall", wall["change_ns"], change, 1)
    why = data.get("explanation")
    if why is not None:
        total = sum(each["change_ns"] for each in why["contributions"])
        within = 1e-6 * wall["baseline_ns"] + 1
        reading.same("contributions sum to the change", "compare explanation", total, why["change_ns"], within)
    for side in ("baseline", "variant"):
        launches = data[side].get("launches")
        if launches is None:
            continue
        shares = sum(launches.get(f"{what}_share") or 0.0 for what in ("busy", "issue", "host", "waiting"))
        reading.at_most("parts are at most their whole", f"compare {side} launches", shares, 1, 1e-9)
        # The first launch of a graph uploads it, before the work of its step begins.
        uploads = launches.get("graph_launches") and launches["calls"] <= launches["graph_launches"]
        if launches.get("issue_ns") is not None and not uploads:
            step, at = wall[f"{side}_ns"] * _CALLS_LIE_ELSEWHERE, f"compare {side} issue_ns"
            reading.at_most("a thread issues for at most the step", at, launches["issue_ns"], step)
