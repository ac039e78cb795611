"""The scorecard: on the planted-cause suite, who names the cause, who raises false alarms, and whose predictions hold.

    python -m benchmarks.diagnosis.scorecard            # prints it, writes benchmarks/results/diagnosis.md
    python -m benchmarks.diagnosis.scorecard --quick    # without the thresholds fitted anew (some minutes)

What the other tools said is read from `benchmarks/results/diagnosis_peers.json` (see `peers`).
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.diagnosis.ours import CHANGES, Foretold, Profiled, claims_of, foretold, profiled
from benchmarks.diagnosis.peers import FAILED, RESULTS, claims_of_nsys, claims_of_nsys_ai
from benchmarks.diagnosis.refit import candidates, left_out, verdicts
from benchmarks.diagnosis.suite import FORMATS, HELD_OUT, Case, cases
from warplens.diagnosis import Diagnosis

__all__ = ["main"]

TARGET = Path(__file__).resolve().parents[1] / "results" / "diagnosis.md"

#: How far a prediction may be off: for launches, and for the other causes.
GRAPH_ERROR, ERROR = 0.15, 0.20
#: Of remedies whose effect is smaller than this, an error says nothing.
LEAST_EFFECT = 0.05

#: The finding whose remedy each change is; only that one is held against what the remedy brought.
FINDINGS = {
    "cuda-graph": "launch-overhead",
    "no-synchronization": "host-sync",
    "no-host-stall": "host-stall",
    "cached-allocation": "allocator-churn",
    "overlapped-copies": "blocking-copy",
    "async-copies": "blocking-copy",
    "fused": "unfused-optimizer",
    "tf32": "precision",
    "bf16": "precision",
    "fused-norm": "unfused-chain",
}


@dataclass(frozen=True)
class Answer:
    """What a tool said of a case.

    Attributes:
        first: the cause that it names first; "" where it says that nothing is wrong.
        claims: all causes that it warns of.
    """

    case: Case
    first: str
    claims: tuple[str, ...]

    @property
    def names_cause(self) -> bool:
        """Whether the planted cause comes first. Of a busy GPU it is right to say that nothing is wrong."""
        planted = self.case.verdicts[0]
        return self.first == planted or (self.first == "" and planted == "saturated")

    @property
    def is_right(self) -> bool:
        """Whether what comes first is right, be it the planted cause or another that the case has, too."""
        return self.first in self.case.verdicts or (self.first == "" and "saturated" in self.case.verdicts)

    @property
    def finds_cause(self) -> bool:
        """Whether the planted cause, or another that is right, is among its warnings."""
        return self.is_right or any(claim in self.case.verdicts for claim in self.claims)

    @property
    def alarms(self) -> bool:
        """Whether it warns of anything."""
        return bool(self.claims)


def _of_diagnosis(case: Case, found: Diagnosis) -> Answer:
    claims = claims_of(found)
    serious = [finding.id for finding in found.findings if finding.severity != "info"]
    return Answer(case, claims[0], tuple(serious))


def _of_claims(case: Case, claims: Sequence[str]) -> Answer:
    return Answer(case, claims[0] if claims else "", tuple(claims))


def _peer_answers(scored: Sequence[Case]) -> dict[str, list[Answer]]:
    if not RESULTS.exists():
        return {}
    said = json.loads(RESULTS.read_text(encoding="utf-8"))
    answers: dict[str, list[Answer]] = {f"`nsys analyze` {said['nsys']}": [], "nsys-ai 0.3.0": []}
    nsys, nsys_ai = answers.values()
    for case in scored:
        if case.name in said["answers"]:
            told = said["answers"][case.name]
            nsys.append(_of_claims(case, claims_of_nsys(told["nsys"])))
            nsys_ai.append(_of_claims(case, claims_of_nsys_ai(told["nsys-ai"])))
    return answers


def _row(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _share(count: int, of: int) -> str:
    return f"{count} of {of} ({100 * count / of:.0f} %)" if of else "–"


def _summary(answers: dict[str, list[Answer]]) -> Iterator[str]:
    yield _row(
        "tool, on",
        "cause named first",
        "planted or another right cause first",
        "right cause among its warnings",
        "healthy controls with a warning",
    )
    yield _row("---", "---:", "---:", "---:", "---:")
    for tool, given in answers.items():
        scored = [answer for answer in given if answer.case.is_scored and not answer.case.is_healthy]
        source = "torch" if tool.endswith("torch") else "nsys"
        healthy = [answer for answer in given if answer.case.is_control(source)]
        yield _row(
            tool,
            _share(sum(answer.names_cause for answer in scored), len(scored)),
            _share(sum(answer.is_right for answer in scored), len(scored)),
            _share(sum(answer.finds_cause for answer in scored), len(scored)),
            _share(sum(answer.alarms for answer in healthy), len(healthy)),
        )


def _case_table(all_cases: Sequence[Case], answers: dict[str, list[Answer]]) -> Iterator[str]:
    yield _row("case", "planted", *answers)
    yield _row(*["---"] * (2 + len(answers)))
    by_case = {tool: {answer.case.name: answer for answer in given} for tool, given in answers.items()}
    for case in all_cases:
        cells = []
        for given in by_case.values():
            answer = given.get(case.name)
            if answer is None:
                cells.append("–")
                continue
            mark = "" if not case.is_scored else "✓ " if answer.names_cause else "(✓) " if answer.is_right else "✗ "
            alarm = " ⚠" if case.is_healthy and answer.alarms else ""
            said = {"": "nothing", FAILED: "cannot read it"}.get(answer.first, answer.first)
            cells.append(f"{mark}{said}{alarm}")
        yield _row(case.name, _planted(case), *cells)


def _planted(case: Case) -> str:
    if case.is_healthy:
        return "nothing"
    names = " or ".join(case.verdicts) or "no verdict asked for"
    return names + (f", then {case.second}" if case.second else "")


def _prediction_table(found: Iterable[Foretold], limit: float | None = None) -> Iterator[str]:
    yield _row("case", "profile", "remedy", "step, ms", "predicted, ms", "measured, ms", "off by")
    yield _row("---", "---", "---", "---:", "---:", "---:", "---:")
    for item in found:
        predicted = "–" if item.predicted_ns is None else f"{item.predicted_ns / 1e6:.2f}"
        off = "no prediction" if item.error is None else f"{100 * item.error:+.0f} %"
        if limit is None and item.error is not None and abs(item.error) > _limit(item):
            off = f"**{off}**"
        yield _row(
            item.case, item.source, item.remedy, f"{item.baseline_ns / 1e6:.2f}", predicted,
            f"{item.measured_ns / 1e6:.2f}", off,
        )  # fmt: skip


def _limit(item: Foretold) -> float:
    return GRAPH_ERROR if item.change == "cuda-graph" else ERROR


def _prediction_summary(found: Sequence[Foretold]) -> Iterator[str]:
    for name, wanted in (("CUDA graph", True), ("other remedies", False)):
        predicted = [item for item in found if (item.change == "cuda-graph") == wanted and item.error is not None]
        within = sum(abs(item.error) <= _limit(item) for item in predicted if item.error is not None)
        errors = [abs(item.error) for item in predicted if item.error is not None]
        if predicted:
            yield (
                f"* {name}: {within} of {len(predicted)} within {100 * _limit(predicted[0]):.0f} %; "
                f"median error {100 * statistics.median(errors):.1f} %."
            )


def _agreement(answers: dict[str, list[Answer]]) -> tuple[int, int, list[str]]:
    nsys, torch = ({answer.case.name: answer.first for answer in answers[tool]} for tool in list(answers)[:2])
    both = [name for name in nsys if name in torch]
    differ = [f"{name} ({nsys[name]}, {torch[name]})" for name in both if nsys[name] != torch[name]]
    return len(both) - len(differ), len(both), differ


def _text(quick: bool) -> Iterator[str]:
    suite, held_out = cases(), cases(HELD_OUT) if HELD_OUT.exists() else []
    profiles = _profiles_of(suite)
    yield "## The suite\n"
    yield from _section(suite, profiles)
    if not quick:
        yield from _refit(profiles)
    if held_out:
        yield "## Held out\n"
        yield ("Other programs with causes of the same kinds, written and recorded when the rules stood.\n")
        yield from _section(held_out, _profiles_of(held_out))


@dataclass(frozen=True)
class Expected:
    """The gain that a finding expects from a remedy, beside the measured one.

    Attributes:
        measured: speedup of a step without a profiler: mean, and its range by the quartiles of both times.
        expected: speedup stated by the finding, with the `interval` of 90 % and the `bound` (None where unknown).
    """

    case: str
    source: str
    remedy: str
    finding: str
    measured: tuple[float, float, float]
    expected: float
    interval: tuple[float, float]
    bound: float | None

    @property
    def holds(self) -> bool:
        """Whether the interval overlaps with the measured range."""
        return self.interval[0] <= self.measured[2] and self.measured[1] <= self.interval[1]

    @property
    def exceeds(self) -> bool:
        """Whether the measured range lies above the bound."""
        return self.bound is not None and self.measured[1] > self.bound


def _expected(profile: Profiled, diagnosis: Diagnosis) -> Iterator[Expected]:
    case = profile.case
    times = {name: variant.get("unprofiled_ns") for name, variant in case.entry["variants"].items()}
    before = times["baseline"]
    for remedy in case.entry.get("remedies", ()):
        after = times.get(remedy)
        change = CHANGES.get((case.name, remedy), CHANGES.get(remedy, remedy))
        finding = diagnosis.finding(FINDINGS.get(change, ""))
        if not before or not after or finding is None or finding.expected is None or finding.expected_interval is None:
            continue
        mean = before["wall_mean_ns"] / after["wall_mean_ns"]
        if 1 - 1 / mean < LEAST_EFFECT:
            continue
        ends = (before["q1_ns"] / after["q3_ns"], before["q3_ns"] / after["q1_ns"])
        measured = (mean, min(mean, *ends), max(mean, *ends))
        yield Expected(
            case.name, profile.source, remedy, finding.id, measured, finding.expected, finding.expected_interval,
            finding.bound,
        )  # fmt: skip


def _gains(profiles: Sequence[Profiled]) -> Iterator[str]:
    """The section on expected gains, which findings derive from the profile alone."""
    gains = [each for profile in profiles for each in _expected(profile, profile.diagnosis())]
    near = sum(abs(each.measured[0] / each.expected - 1) <= ERROR for each in gains)
    yield "### Expected and measured gains\n"
    yield (
        "What the finding expects whose remedy was timed, from the profile alone, without a profiler. Remedies that no "
        "finding proposes, such as half of the bytes, are held against none.\n"
    )
    yield (
        f"Within {100 * ERROR:.0f} %: {_share(near, len(gains))}; in the interval: "
        f"{_share(sum(each.holds for each in gains), len(gains))}; above the bound: "
        f"{_share(sum(each.exceeds for each in gains), len(gains))}.\n"
    )
    missed = [each for each in gains if not each.holds or each.exceeds]
    if missed:
        yield _row("not in the interval", "profile", "remedy", "finding", "measured", "expected", "bound")
        yield _row("---", "---", "---", "---", "---:", "---:", "---:")
        for each in missed:
            low, high = each.interval
            bound = "–" if each.bound is None else f"{each.bound:.2f}" + (" ⚠" if each.exceeds else "")
            yield _row(
                each.case, each.source, each.remedy, each.finding, f"{each.measured[0]:.2f}",
                f"{each.expected:.2f} ({low:.2f}–{high:.2f})", bound,
            )  # fmt: skip
        yield ""


def _profiles_of(all_cases: Sequence[Case]) -> list[Profiled]:
    return [found for case in all_cases for source in FORMATS if (found := profiled(case, source)) is not None]


def _section(all_cases: Sequence[Case], profiles: Sequence[Profiled]) -> Iterator[str]:
    answers: dict[str, list[Answer]] = {
        f"Warplens, {source}": [_of_diagnosis(p.case, p.diagnosis()) for p in profiles if p.source == source]
        for source in FORMATS
    }
    answers |= _peer_answers(all_cases)
    yield "### Who names the cause\n"
    yield "\n".join(_summary(answers)) + "\n"
    same, both, differ = _agreement(answers)
    yield (
        f"The same verdict from both formats: {same} of {both} programs"
        + (f"; not {', '.join(differ)}." if differ else ".")
        + "\n"
    )
    yield "### Case by case\n"
    yield (
        "✓ the planted cause first, (✓) another right one first, ✗ neither (no mark: not scored); "
        "⚠ a warning on a healthy control.\n"
    )
    yield "\n".join(_case_table(all_cases, answers)) + "\n"
    yield from _judged(all_cases)
    yield from _gains(profiles)
    yield from _predictions(profiles)


def _judged(all_cases: Sequence[Case]) -> Iterator[str]:
    """The section on cases whose measured times contradict the planted cause or the healthy label."""
    unscored = [case for case in all_cases if not case.is_healthy and (not case.is_scored or case.is_mixed)]
    if unscored:
        yield "Planted, and by the measured times of the remedies not the largest cause:\n"
        yield (
            "\n".join(
                f"* {case.name}: {case.entry['measured'].get('why_not', '')}"
                + ("" if case.is_scored else " (not scored)")
                for case in unscored
            )
            + "\n"
        )
    disturbed = [
        f"{case.name} ({source}: {case.entry['measured']['profiled_factor'][source]:.2f} times)"
        for case in all_cases
        if case.is_healthy
        for source in FORMATS
        if not case.is_control(source)
    ]
    if disturbed:
        yield (
            "Healthy without a profiler, but not in the profile, where steps take longer because the host was slower "
            f"than the GPU; not counted as controls: {', '.join(disturbed)}.\n"
        )


def _predictions(profiles: Sequence[Profiled]) -> Iterator[str]:
    items = [item for profile in profiles for item in foretold(profile, unprofiled=True)]
    effective = [item for item in items if abs(1 - item.measured_ns / item.baseline_ns) >= LEAST_EFFECT]
    yield "### Predicted and measured steps without a profiler\n"
    yield (
        "The prediction knows the profile of the baseline and how long its steps take without a profiler; the remedy "
        "was then applied and timed without a profiler.\n"
    )
    yield "\n".join(_prediction_summary(effective)) + "\n"
    yield "\n".join(_prediction_table(effective)) + "\n"
    under = [item for profile in profiles for item in foretold(profile, unprofiled=False)]
    if under:
        yield "### Predicted and measured steps under the same profiler\n"
        yield (
            "Here the prediction knows nothing but the profile. It does not model what the profiler adds to the "
            "remedied program (tracing a graph node by node costs, too).\n"
        )
        yield "\n".join(_prediction_table(under, limit=1.0)) + "\n"


def _refit(profiles: Sequence[Profiled]) -> Iterator[str]:
    found = verdicts(profiles)
    right = {
        (profile.case.name, profile.source): profile.case.verdicts for profile in profiles if profile.case.is_scored
    }
    changed, moves = left_out(profiles, right, found)
    yield "### Thresholds\n"
    yield (
        f"Fitted anew to all cases but one, {len(candidates())} ways to move them tried: the verdict of the case left "
        f"out changes for {len(changed)} of {len(right)} profiles"
        + (": " + "; ".join(f"{name} {source}: {old} → {new}" for name, source, old, new in changed) if changed else "")
        + ".\n"
    )
    if moves:
        times = ", ".join(f"{move} ({count}×)" for move, count in moves.most_common())
        yield f"Fits that differ from the thresholds: {times}.\n"
    sensitive = []
    for move in candidates():
        differs = [key for key, by_move in found.items() if by_move[move] != by_move["", 1.0]]
        if differs:
            sensitive.append((move, differs))
    yield (
        f"Each threshold moved alone, by factors of 0.8 to 1.25: {len(sensitive)} of {len(candidates())} moves change "
        "any verdict at all.\n"
    )
    if sensitive:
        yield (
            _row("moved", "verdicts that change")
            + "\n"
            + _row("---", "---")
            + "\n"
            + "\n".join(
                _row(f"`{name}` × {factor:g}", ", ".join(f"{case} ({source})" for case, source in differs))
                for (name, factor), differs in sensitive
            )
            + "\n"
        )


def main() -> None:
    """Prints and stores the scorecard."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="do not fit the thresholds anew")
    options = parser.parse_args()
    text = "\n".join(_text(options.quick))
    if not options.quick:
        TARGET.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
