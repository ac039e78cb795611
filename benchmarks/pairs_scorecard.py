"""How the diagnosis does on pairs: programs with one habit, timed without a profiler before and after the change.

    python -m benchmarks.pairs_scorecard                      # data/pairs of the repository
    python -m benchmarks.pairs_scorecard FOLDER --half held_out --cases
    python -m benchmarks.pairs_scorecard --write              # benchmarks/results/pairs.md, which the docs show

Asked of each recording: is the habit the first finding (where mending it brings 1.15 times or more); does the measured
gain stay under the bound of the finding that names it; how far is the expected step from the measured one; does the
interval hold it; is a healthy program warned. Gains are held against two expectations: that of the finding, which is
its first remedy's, and that of the remedy that was timed, where the index says which and the diagnosis lists it.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Final, cast

from benchmarks.pairs import FOLDER, HALVES, SOURCES, Estimate, Pair, pairs
from warplens.analysis.timeline import Timeline
from warplens.diagnosis import Diagnosis, Finding, Remedy, diagnose
from warplens.diagnosis.rule import SPREADS, Model
from warplens.diagnosis.unprofiled import with_step_time
from warplens.errors import UsageError
from warplens.readers import read

TARGET = Path(__file__).resolve().parent / "results" / "pairs.md"

#: An expected step this near to the measured one counts as foretold.
NEAR: Final = 0.20


@dataclass(frozen=True)
class Answer:
    """The diagnosis of one recording.

    Attributes:
        pair: the program.
        source: `nsys` or `torch`.
        found: the diagnosis.
    """

    pair: Pair
    source: str
    found: Diagnosis

    @property
    def warned(self) -> list[str]:
        """Ids of the findings that warn."""
        return [finding.id for finding in self.found.findings if finding.severity != "info"]

    @property
    def named_first(self) -> bool:
        """Whether the first finding is the habit, or another accepted one."""
        return self.found.verdict in self.pair.accepted

    @property
    def finding(self) -> Finding | None:
        """The finding that names the habit, whose remedy was timed; otherwise another accepted one."""
        named = (self.found.finding(id_) for id_ in self.pair.accepted)
        return next((finding for finding in named if finding is not None), None)

    @property
    def ratio(self) -> Estimate:
        """Measured gain for the same work; 1 for a healthy program."""
        return self.pair.ratio or Estimate(1.0, 1.0, 1.0)

    @property
    def exceeds_bound(self) -> bool:
        """Whether the interval of the measured gain lies above the bound."""
        finding = self.finding
        return finding is not None and finding.bound is not None and self.ratio.low > finding.bound

    @property
    def error(self) -> float | None:
        """Expected step / measured step − 1; None where no gain was expected."""
        finding = self.finding
        return None if finding is None or finding.expected is None else self.ratio.median / finding.expected - 1

    @property
    def covered(self) -> bool | None:
        """Whether the interval contains the measured gain, or overlaps with its interval."""
        return self._in(self.finding.expected_interval if self.finding is not None else None)

    def _in(self, interval: tuple[float, float] | None) -> bool | None:
        return None if interval is None else interval[0] <= self.ratio.high and self.ratio.low <= interval[1]

    @property
    def timed(self) -> Remedy | None:
        """The remedy that was timed; None if the index names none, or the finding does not list it."""
        listed = self.finding.remedies if self.finding is not None else ()
        return next((each for begin in self.pair.remedies for each in listed if each.action.startswith(begin)), None)

    @property
    def timed_gain(self) -> float | None:
        """The expected gain of the remedy that was timed, at the batch that was timed."""
        if self.timed is None:
            return None
        by_batch = self.timed.gain_by_batch
        return by_batch.get(self.pair.times or 0) if by_batch is not None else self.timed.gain

    @property
    def timed_error(self) -> float | None:
        """Expected step / measured step − 1 for the remedy that was timed; None where it states no gain."""
        return None if self.timed_gain is None else self.ratio.median / self.timed_gain - 1

    @property
    def timed_covered(self) -> bool | None:
        """Whether the interval of the timed remedy contains the gain; None where it is for another batch."""
        same = self.timed is not None and self.timed.gain == self.timed_gain
        return self._in(self.timed.gain_interval) if self.timed is not None and same else None


def answers(folder: Path, half: str | None = None, *, timed: bool = False) -> Iterator[Answer]:
    """The diagnosis of each recording of the `before` variants, with `timed` given the step time that was measured."""
    tasks = [(pair, source, path) for pair in pairs(half, folder) for source in SOURCES if (path := pair.path(source))]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        yield from pool.map(partial(_answer, timed=timed), tasks)


def _answer(task: tuple[Pair, str, Path], *, timed: bool) -> Answer:
    """The diagnosis of one recording: a pair, its profiler and its file."""
    pair, source, path = task
    timeline = Timeline(read(path))
    window = timeline.window()
    if timed:
        try:
            timeline = with_step_time(timeline, window, round(pair.before_ns))
        except UsageError as error:  # as it would be refused at the command line
            print(error, file=sys.stderr)
    # Pictures of steps are large, and no figure needs them.
    return Answer(pair, source, replace(diagnose(timeline, window), what_if=None))


def summary(diagnosed: list[Answer]) -> Iterator[str]:
    """The figures as a Markdown table."""
    yield "| on | cause first | bound exceeded | expected step within 20 % | in the 90 % interval | healthy, warned |"
    yield "|---|---:|---:|---:|---:|---:|"
    for source in SOURCES:
        of_source = [answer for answer in diagnosed if answer.source == source]
        mended = [answer for answer in of_source if not answer.pair.is_healthy]
        costly = [answer for answer in mended if answer.pair.is_scored]
        healthy = [answer for answer in of_source if answer.pair.is_healthy]
        with_gain = [answer for answer in mended if answer.error is not None]
        cells = (
            _of(sum(answer.named_first for answer in costly), len(costly)),
            _of(sum(answer.exceeds_bound for answer in mended), len(mended)),
            _of(sum(abs(answer.error or 0.0) <= NEAR for answer in with_gain), len(with_gain)),
            _of(sum(bool(answer.covered) for answer in with_gain), len(with_gain)),
            _of(sum(bool(answer.warned) for answer in healthy), len(healthy)),
        )
        yield f"| {source} | {' | '.join(cells)} |"


def of_the_timed(diagnosed: list[Answer]) -> Iterator[str]:
    """Accuracy of the gains of the finding and of the timed remedy, as a Markdown table."""
    yield "| on | gain held against | recordings | expected step within 20 % | in the 90 % interval |"
    yield "|---|---|---:|---:|---:|"
    for source in SOURCES:
        of_source = [answer for answer in diagnosed if answer.source == source and not answer.pair.is_healthy]
        with_gain = [answer for answer in of_source if answer.timed_error is not None]
        views = {
            "that of the finding": [(answer.error, answer.covered) for answer in of_source],
            "the same, where the timed remedy tells one": [(answer.error, answer.covered) for answer in with_gain],
            "that of the timed remedy": [(answer.timed_error, answer.timed_covered) for answer in with_gain],
        }
        for held, pairs_of in views.items():
            errors = [error for error, _ in pairs_of if error is not None]
            covered = [inside for _, inside in pairs_of if inside is not None]
            near = _of(sum(abs(error) <= NEAR for error in errors), len(errors))
            yield f"| {source} | {held} | {len(errors)} | {near} | {_of(sum(covered), len(covered))} |"


def repeats(given: list[Answer]) -> Iterator[str]:
    """How near a second timing of the same program comes to the first one, and expected gains to each."""
    yield "| on | timed twice | second within 20 % of the first | expected within 20 % of the first | of the second |"
    yield "|---|---:|---:|---:|---:|"
    for source in SOURCES:
        told = [
            (answer.ratio.median, answer.pair.repeated.median, answer.finding.expected)
            for answer in given
            if answer.source == source and answer.pair.repeated and answer.finding and answer.finding.expected
        ]
        pairs_of = {
            "repeat": [(first, second) for first, second, _ in told],
            "first": [(first, expected) for first, _, expected in told],
            "second": [(second, expected) for _, second, expected in told],
        }
        near = {name: sum(abs(one / other - 1) <= NEAR for one, other in both) for name, both in pairs_of.items()}
        yield f"| {source} | {len(told)} | {' | '.join(_of(count, len(told)) for count in near.values())} |"


def with_measured_steps(diagnosed: list[Answer], timed: list[Answer]) -> Iterator[str]:
    """Gains from the profile alone, and with the measured time of the step before the change, as a Markdown table."""
    yield "| on | gains from | step within 20 % | by the timed remedy | in the 90 % interval | width, median |"
    yield "|---|---|---:|---:|---:|---:|"
    for source in SOURCES:
        for told, each in {"the profile": diagnosed, "the profile and the measured step": timed}.items():
            of_source = [answer for answer in each if answer.source == source and answer.error is not None]
            remedies = [answer.timed_error for answer in of_source if answer.timed_error is not None]
            intervals = [answer.finding.expected_interval for answer in of_source if answer.finding is not None]
            widths = [high / low for low, high in filter(None, intervals)]
            cells = (
                _of(sum(abs(answer.error or 0.0) <= NEAR for answer in of_source), len(of_source)),
                _of(sum(abs(error) <= NEAR for error in remedies), len(remedies)),
                _of(sum(bool(answer.covered) for answer in of_source), len(of_source)),
                f"× {median(widths):.2f}" if widths else "–",
            )
            yield f"| {source} | {told} | {' | '.join(cells)} |"


def _of(count: int, total: int) -> str:
    return f"{count} of {total} ({100 * count / total:.0f} %)" if total else "–"


def spreads(diagnosed: list[Answer]) -> Iterator[str]:
    """By kind of model, the factor that covers the error of nine of ten gains (less 1), as a Markdown table.

    The rank of the factor is that of split conformal prediction, ⌈0.9·(n + 1)⌉ of n errors (V. Vovk et al.,
    "Algorithmic Learning in a Random World", 2005, ch. 4). Its coverage on unseen programs is estimated by leaving out
    each program with both of its recordings, and counting gains within the factor of the others.
    """
    yield "| model | recordings | in use | nine of ten within | widest, a set left out | held when left out |"
    yield "|---|---:|---:|---:|---:|---:|"
    all_errors = _errors(diagnosed)
    without = [_errors([answer for answer in diagnosed if answer.pair.half != half]) for half in HALVES]
    for model, used in SPREADS.items():
        errors = all_errors[model]
        widest = math.exp(max(_nine_of_ten([error for _, error in each[model]]) for each in without))
        held = sum(error <= _nine_of_ten([e for other, e in errors if other != name]) for name, error in errors)
        found = math.exp(_nine_of_ten([error for _, error in errors]))
        yield f"| {model} | {len(errors)} | {used:.1f} | {found:.2f} | {widest:.2f} | {_of(held, len(errors))} |"


def left_out(diagnosed: list[Answer]) -> Iterator[str]:
    """By set, how many gains the factors of the other sets cover: an estimate for unseen programs.

    The gains are those of today's rules, which have been mended with every set in view; the widths are not.
    """
    yield "| set left out | nsys | torch |"
    yield "|---|---:|---:|"
    for half in HALVES:
        errors_of_others = _errors([answer for answer in diagnosed if answer.pair.half != half])
        widths = {
            model: _nine_of_ten([error for _, error in errors]) for model, errors in errors_of_others.items() if errors
        }
        cells = []
        for source in SOURCES:
            of_source = _errors(
                [answer for answer in diagnosed if answer.pair.half == half and answer.source == source]
            )
            held = [
                error <= widths[model] for model, errors in of_source.items() if model in widths for _, error in errors
            ]
            cells.append(_of(sum(held), len(held)))
        yield f"| {half} | {' | '.join(cells)} |"


def _errors(diagnosed: list[Answer]) -> dict[Model, list[tuple[str, float]]]:
    """By kind of model, the errors of expected gains as (program, logarithm of a factor).

    The factor is that by which the measured gain (less 1) lies outside of the range that the host's pace leaves open.
    Changes without a gain have no such factor; they only count in the coverage of intervals (`summary`).
    """
    errors: dict[Model, list[tuple[str, float]]] = {model: [] for model in SPREADS}
    for answer in diagnosed:
        basis = answer.finding.basis if answer.finding is not None else None
        if basis is not None and answer.ratio.high > 1:
            above = (answer.ratio.low - 1) / (basis.most - 1)
            below = (basis.least - 1) / (answer.ratio.high - 1)
            errors[cast("Model", basis.model)].append((answer.pair.name, math.log(max(above, below, 1.0))))
    return errors


def _nine_of_ten(errors: list[float]) -> float:
    rank = math.ceil(0.9 * (len(errors) + 1))
    return sorted(errors)[min(rank, len(errors)) - 1]


def cases(diagnosed: list[Answer]) -> Iterator[str]:
    """Each recording as a row."""
    yield "| program | profile | habit | first | measured | expected | bound | other warnings |"
    yield "|---|---|---|---|---:|---:|---:|---|"
    for answer in diagnosed:
        finding, pair = answer.finding, answer.pair
        low, high = finding.expected_interval if finding and finding.expected_interval else (0.0, 0.0)
        expected = f"{finding.expected:.2f} ({low:.2f}–{high:.2f})" if finding and finding.expected else "–"
        bound = f"{finding.bound:.2f}" if finding and finding.bound else "–"
        mark = "" if not pair.is_scored or answer.named_first else " ✗"
        wrong = " ⚠" if answer.exceeds_bound else ""
        others = ", ".join(id_ for id_ in answer.warned if id_ != answer.found.verdict)
        measured = "–" if pair.is_healthy else f"{answer.ratio.median:.2f}"
        yield (
            f"| {pair.name} | {answer.source} | {pair.habit or 'healthy'} | {answer.found.verdict}{mark} "
            f"| {measured} | {expected} | {bound}{wrong} | {others} |"
        )


def main() -> int:
    """Prints the figures, or writes them where the docs take them from, by section."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pairs_scorecard", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--half", choices=HALVES)
    parser.add_argument("--cases", action="store_true", help="also each recording")
    parser.add_argument("--spread", action="store_true", help="also how far gains are off, by kind of model")
    parser.add_argument("--timed", action="store_true", help="also with the step times that were measured before")
    parser.add_argument("--write", action="store_true", help=f"all of it, to {TARGET.name}")
    options = parser.parse_args()
    diagnosed = list(answers(options.folder, options.half))
    timed = list(answers(options.folder, options.half, timed=True)) if options.timed or options.write else []
    if options.write:
        sections: dict[str, Callable[[list[Answer]], Iterator[str]]] = {
            "summary": summary,
            "timed": of_the_timed,
            "repeats": repeats,
            "models": spreads,
            "left-out": left_out,
            "measured": partial(with_measured_steps, timed=timed),
            "cases": cases,
        }
        lines = (
            line
            for name, table in sections.items()
            for line in (f"<!-- --8<-- [start:{name}] -->", *table(diagnosed), f"<!-- --8<-- [end:{name}] -->", "")
        )
        TARGET.write_text("\n".join(lines), "utf-8")
        return 0
    parts = [
        summary(diagnosed),
        of_the_timed(diagnosed),
        *([spreads(diagnosed), left_out(diagnosed)] if options.spread else []),
    ]
    parts += [cases(diagnosed)] if options.cases else []
    parts += [with_measured_steps(diagnosed, timed)] if timed else []
    sys.stdout.write("\n".join("\n".join([*part, ""]) for part in parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
