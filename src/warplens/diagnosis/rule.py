"""What a finding is declared as: one `Rule` holds all that is known of one cause.

A rule asks one question of the window. It says which time its cause claims, when it is raised, how sure that is, which
numbers show it, what to do and which experiment would refute it. How much it can gain, and so how severe it is, follows
from its claim. The vocabulary, the headline, the documentation and the tests read these objects; to add a finding is to
add one, in a module of `warplens.diagnosis.rules`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeAlias, TypeVar, cast

import numpy as np

from warplens.diagnosis.findings import (
    ISSUING,
    MANY,
    Basis,
    Confidence,
    Finding,
    Located,
    Remedy,
    Severity,
    about,
    ceiling,
    times,
)
from warplens.diagnosis.pace import NOISE, Gain
from warplens.profile.schema import Bools, Float64s, Int64s

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from warplens.diagnosis.claims import Claims
    from warplens.diagnosis.facts import Facts


#: How claims on the same piece of work are settled, the last one wins: what was inferred of single kernels, what the
#: structure of the program shows (of several among these, the largest share), what counters measured, and what is
#: certain of the piece itself.
Precedence: TypeAlias = Literal["inferred", "structure", "measured", "certain"]
PRECEDENCES: Final[tuple[Precedence, ...]] = ("inferred", "structure", "measured", "certain")

#: What several findings give as evidence.
GPU_BUSY_SHARE: Final = {"gpu_busy_share": "of the window, over its GPUs"}
IDLE_NS: Final = {"idle_ns": "idle time that the finding claims"}
IDLE_SHARE: Final = {"idle_share": "that idle time, of the window"}
LAUNCHES_BEHIND_NS: Final = {
    "launches_behind_ns": "modelled: launch pauses that the host would hide without this cause"
}
LAUNCHES_PER_STEP: Final = {"launches_per_step": "kernels; for the optimizer, its own"}

_Asked = TypeVar("_Asked", bound="Rule")
_Found = TypeVar("_Found")


def remembered(ask: Callable[[_Asked, Facts], _Found]) -> Callable[[_Asked, Facts], _Found]:
    """A pattern that several parts of a rule ask for, looked for once in each window (`Facts.answers`)."""

    @wraps(ask)
    def known(rule: _Asked, facts: Facts) -> _Found:
        if (ask,) not in facts.answers:
            facts.answers[ask,] = ask(rule, facts)
        found: _Found = facts.answers[ask,]
        return found

    return known


#: Stands in what a remedy should bring for the gain that is expected of its finding: the same number everywhere.
GAIN: Final = "{gain}"

#: Stands there for what batches of other sizes than that of the gain bring.
OTHER_BATCHES: Final = "{batches}"

_NS_PER_MS: Final = 1e6

#: What a gain is computed from: products as another algorithm or format does them, what a library does with another
#: size or memory layout, traffic (and how full small grids leave the GPU), or the host: its pace, and what it does
#: beside issuing work.
Model: TypeAlias = Literal["products", "layout", "traffic", "host"]

#: By what factor a measured gain (less 1) was beyond the range that the host's pace leaves open, in nine of ten
#: recordings of programs that were timed before and after, for each kind of model: of the fits with one set of programs
#: left out the widest, because programs of one set are alike. That of the host is wider than any fit (1.7): with it,
#: intervals held 44 of 48 gains of two sets that frozen rules read for the first time.
#: `python -m benchmarks.pairs_scorecard --spread` computes them anew.
SPREADS: Final[dict[Model, float]] = {"products": 1.8, "layout": 3.7, "traffic": 2.2, "host": 2.1}


def bringing(remedy: Remedy, gain: Gain | None, model: Model = "host") -> Remedy:
    """A remedy that does not bring what its finding expects, with what it brings by itself; None: not to be told.

    Args:
        remedy: what `modelled` tells of it stays.
        gain: computed from `model`.
        model: what sets the width of its interval.
    """
    if gain is None:
        said = remedy.expected.replace(GAIN, "").lstrip(":; ")
        return replace(remedy, expected=said or "not to be told from this profile")
    return replace(remedy, gain=gain.expected, basis=Basis(model, gain.low, gain.high))


def in_order(remedies: tuple[Remedy, ...], gain: float) -> tuple[Remedy, ...]:
    """Remedies behind the first that brings what the finding expects by what each brings, the unknown ones last."""
    first = next((place for place, remedy in enumerate(remedies, start=1) if remedy.gain == gain), 0)
    return *remedies[:first], *sorted(remedies[first:], key=lambda remedy: -(remedy.gain or 0.0))


class Limit(float):
    """A number that one rule compares with, and why it is that one. What several rules use is in `Thresholds`."""

    why: str

    def __new__(cls, value: float, why: str) -> Limit:
        """The number, with its reason."""
        limit = super().__new__(cls, value)
        limit.why = why
        return limit


class Rule:
    """One finding. Every text that is not optional is checked to be there."""

    id: ClassVar[str]  #: of the finding
    question: ClassVar[str]  #: that the rule asks of a window
    limiter: ClassVar[str]  #: what limits a window with it, in a few words
    cause: ClassVar[str]  #: the same at more length, for the documentation
    raised_when: ClassVar[str]  #: what raises it
    claimed: ClassVar[str] = "nothing"  #: which time it claims
    #: the verdict with this cause, `{share}` being the time that it claims; empty where it describes
    headline: ClassVar[str] = ""
    headlines: ClassVar[Mapping[str, str]] = {}  #: title → the headline of findings with it, where it is another one
    title: ClassVar[str] = ""  #: one sentence for people, where it is always the same
    #: name of each number that shows it → what it is. The end of a name is its unit (`EVIDENCE_UNITS`).
    evidence: ClassVar[Mapping[str, str]]
    refutation: ClassVar[str]  #: the experiment that would show it to be wrong
    #: which of `Thresholds` it compares with, beside those that all do. Its own are attributes (`Limit`).
    thresholds: ClassVar[tuple[str, ...]] = ()
    #: it says what a window does, not what it loses, and is the verdict only where nothing is lost
    describes: ClassVar[bool] = False
    precedence: ClassVar[Precedence] = "inferred"  #: how sure its claim on GPU work is
    #: what its gain is computed from where the GPU's work alone gets less, which says how far off that may be
    model: ClassVar[Model] = "traffic"
    located: ClassVar[Located] = "work"  #: by what its places in the program are told (`warplens.diagnosis.places`)

    def claim(self, facts: Facts) -> Float64s | None:
        """Of each piece of GPU work, the share of its time that goes away with the cause; None for no work at all."""
        return None

    def claim_gaps(self, facts: Facts) -> Float64s | None:
        """Of each pause, the share that goes away with the cause, whatever the host did in it; None for none."""
        return None

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, unless the window does not have it."""
        raise NotImplementedError

    def headline_of(self, finding: Finding) -> str:
        """The verdict with this cause as this finding has it."""
        return self.headlines.get(finding.title, self.headline)

    def told(self, facts: Facts, finding: Finding) -> str:
        """The verdict of a finding that describes, as a sentence; empty where its title has to do."""
        return ""

    def needless(self, finding: Finding) -> bool:
        """Whether it is about work whose results nothing takes: what is slow about it is no matter once it is gone."""
        return False

    def makes_launches(self, finding: Finding) -> bool:
        """Whether it keeps a host from running ahead, or makes it issue too much: no graph captures that."""
        return self.needless(finding)

    def sought(self, facts: Facts) -> Int64s | None:
        """Of each piece of work, the time by which places are told of a finding that claims none; None for none."""
        return None

    @classmethod
    def limits(cls) -> dict[str, Limit]:
        """The numbers that this rule alone compares with, by name."""
        return {name: value for name, value in vars(cls).items() if isinstance(value, Limit)}

    def raised(
        self,
        facts: Facts,
        claimed_ns: int,
        *,
        confidence: Confidence,
        evidence: Mapping[str, int | float | None],
        where: tuple[str, ...],
        remedies: tuple[Remedy, ...],
        title: str = "",
        warning: float | None = None,
        informs: bool = False,
        on_gpu: bool = False,
        issuing_ns: int = 0,
        kept: float = 0.0,
        bound_ns: int | None = None,
        bound_known: bool = True,
        at_least: float = 1.0,
        replayed: Gain | None = None,
        busy_ns: int = 0,
        claims: Claims | None = None,
    ) -> Finding | None:
        """The finding, unless its cause costs too little to be told from chance.

        Args:
            facts: the window.
            claimed_ns: wall time that the cause claims.
            confidence, where, remedies, title: as in `Finding`.
            evidence: the same; numbers that are None were not recorded and are left out.
            warning: the gain from which on it is a warning, where the general one is too low.
            informs: it only informs, whatever its gain.
            on_gpu: it makes the GPU slower and leaves the host as it is, which then sets the pace.
            issuing_ns: of the claimed time, the part in which the host issued work, which the profiler made longer.
            kept: of the claimed time, the share that is expected to stay after the best remedy.
            bound_known: whether anything bounds it; how much a larger batch shares, for one, does not show.
            bound_ns: what the remedies could take away by the physics of the same mathematics; the claim if not given.
            at_least: a factor below which the bound cannot lie, such as that of a remedy that was replayed.
            replayed: what the best remedy brings by a replay, where there is one; it counts before what the claim says.
            busy_ns: of the claimed time, GPU work, where `replayed` is given.
            claims: the best remedy takes away the work that the rule claims of it, and nothing else.
        """
        limits = facts.thresholds
        saved = claimed_ns * (1 - kept)
        told = self._without(facts, claims) if claims is not None and replayed is None else replayed
        gain = gain_of(facts, int(saved), on_gpu=on_gpu, issuing_ns=int(issuing_ns * (1 - kept)))
        if told is not None and replayed is None:
            # Where pauses are claimed, replay and claim see the host in two ways, and neither is nearer in general.
            other = told.expected if on_gpu else gain
            told = replace(told, low=min(told.low, other), high=max(told.high, other))
            gain = math.sqrt(told.expected * other)
        # What a replay makes of a cause that is hardly seen has another reason, such as a second thread.
        if replayed is not None and bound_of(facts, claimed_ns, issuing_ns) >= limits.raise_ceiling:
            # Pauses that no host could avoid stay, whatever the replay makes of them.
            avoidable = facts.idle_ns - facts.idle("dependency", "submission", "profiler", "unknown")
            most = bound_of(facts, min(avoidable + busy_ns, facts.wall_ns))
            gain = min(replayed.expected, most)
            at_least = max(at_least, 1 + (min(replayed.high, most) - 1) * NOISE)
        if gain < limits.raise_ceiling:
            return None
        bound = max(bound_of(facts, claimed_ns, issuing_ns), ceiling(facts.wall_ns, bound_ns or 0), gain)
        if on_gpu:
            bound = max(bound, bound_of(facts, bound_ns or 0))
        if replayed is not None or not on_gpu:
            # What the host takes differs from run to run; what the GPU needs does not.
            bound = 1 + (bound - 1) * NOISE
        bound = max(bound, at_least)
        gain = min(gain, MANY)
        span = (gain, gain) if told is None else (min(told.low, gain), max(told.high, gain))
        # What the host no longer does sets the gain: its pace is less sure than what the GPU does.
        basis = Basis(self.model if on_gpu else "host", *span)
        bounded = bound if bound_known and bound < MANY else None
        interval = _interval(basis, bounded)
        least = max(limits.warning_ceiling, warning or 0.0)
        severity: Severity = "info"
        if not informs and gain >= least:
            # What the host did in one step alone may be of that step; GPU work is the same in all. Where steps are only
            # inferred, and may be parts of one, nothing is that sure.
            sure = len(facts.window.steps) > (0 if on_gpu else 1) and facts.timeline.steps.is_sure
            severity = "critical" if gain >= max(limits.critical_ceiling, least) and sure else "warning"
        known = {name: value for name, value in evidence.items() if value is not None}
        return Finding(
            self.id,
            title or self.title,
            severity,
            confidence,
            gain,
            interval,
            bounded,
            known,
            where,
            told_of(remedies, gain, interval, bounded, basis),
            self.refutation,
            basis=basis,
        )

    #: Where a rule claims pauses: from which share of its time on a piece of work is not launched, but done by another.
    unlaunched_share: ClassVar[float] = 0.99

    #: Whether its remedy takes away what another cause has claimed as well. One for any chain of passes does not.
    takes_all: ClassVar[bool] = True

    def _without(self, facts: Facts, claims: Claims) -> Gain | None:
        """What it brings by a replay if the work that is claimed goes, and its launches where pauses are claimed."""
        mine, time = claims.pieces(self.id), facts.program.own_ns
        share, asked = mine.share_of(time), self.claim(facts)
        # What is claimed twice goes to one cause; a remedy takes away all of it.
        if self.takes_all and asked is not None and 2 * mine.total > asked @ time:
            share = np.maximum(asked, share)
        gone = np.where(share >= self.unlaunched_share, 1.0, share) if claims.idle_ns(self.id) else None
        return facts.replayed(time=share, calls=gone)

    def described(
        self,
        *,
        title: str = "",
        confidence: Confidence,
        gain: float | None,
        evidence: Mapping[str, int | float | None],
        where: tuple[str, ...] = (),
        remedies: tuple[Remedy, ...],
    ) -> Finding:
        """A finding that informs, whatever could be gained."""
        known = {name: value for name, value in evidence.items() if value is not None}
        return Finding(
            self.id,
            title or self.title,
            "info",
            confidence,
            None,
            None,
            gain,
            known,
            where,
            remedies,
            self.refutation,
        )


def _interval(basis: Basis, bound: float | None) -> tuple[float, float]:
    """The 90 % interval of a gain that is computed from this, up to its bound."""
    spread = SPREADS[cast("Model", basis.model)]
    high = min(1 + (basis.most - 1) * spread, MANY)
    return 1 + (basis.least - 1) / spread, high if bound is None else min(high, bound)


def told_of(
    remedies: tuple[Remedy, ...],
    gain: float,
    interval: tuple[float, float],
    bound: float | None,
    basis: Basis | None = None,
) -> tuple[Remedy, ...]:
    """The remedies of a finding in their order, each with what it brings, and none with more than the bound.

    Those that are said to bring `GAIN` bring what the finding expects; where none is, the first of them does.
    """
    least = 1 if remedies[:1] == (STEPS_ONLY,) else 0
    named = any(GAIN in remedy.expected for remedy in remedies)
    best = None if named else next(iter(remedies[least:]), None)

    def told(remedy: Remedy) -> Remedy:
        if remedy.gain_by_batch is not None:
            remedy = _with_batches(remedy, MANY if bound is None else bound)
        if remedy.gain is None or remedy.basis is None:
            if GAIN not in remedy.expected and remedy is not best:
                return remedy
            said = remedy.expected.replace(GAIN, about(gain))
            return replace(remedy, expected=said, gain=gain, gain_interval=interval, basis=basis)
        most = MANY if bound is None else min(bound, MANY)
        own = min(max(remedy.gain, 1.0), most)
        span = Basis(remedy.basis.model, min(remedy.basis.least, own), max(remedy.basis.most, own))
        low, high = _interval(span, bound)
        said = remedy.expected.replace(GAIN, about(own))
        return replace(remedy, expected=said, gain=own, gain_interval=(low, high), basis=span)

    return in_order(tuple(map(told, remedies)), gain)


def _with_batches(remedy: Remedy, bound: float) -> Remedy:
    """The remedy with the batches that stay below the bound, and in its words those that are not its gain's."""
    known = {size: gain for size, gain in (remedy.gain_by_batch or {}).items() if gain <= bound}
    others = ", ".join(f"{size} times: {times(gain)}" for size, gain in known.items() if gain != remedy.gain)
    said = remedy.expected.replace(OTHER_BATCHES, f" ({others})" if others else "")
    return replace(remedy, expected=said, gain_by_batch=known or None)


def gain_of(facts: Facts, saved_ns: int, *, on_gpu: bool, issuing_ns: int = 0) -> float:
    """How many times as fast the window gets without a profiler if this time goes away.

    Time that the GPU saves helps only until the host's own time sets the pace. Pauses in which the host issues work
    count with what is left of them without the profiler, in the claim and in the window.

    Args:
        facts: the window.
        saved_ns: what goes away.
        on_gpu: of the GPU's time.
        issuing_ns: of that, what the host took to issue work.
    """
    if on_gpu:
        before, after = facts.unprofiled_ns(0), facts.unprofiled_ns(saved_ns)
        return before / max(after, 1)
    wall = facts.wall_ns - facts.added_ns
    return ceiling(wall, min(saved_ns - (1 - facts.unprofiled_share) * issuing_ns, wall))


def bound_of(facts: Facts, saved_ns: int, issuing_ns: int = 0) -> float:
    """The most that can come of it, whatever the profiler added to the launches: nothing, or all of their time.

    What the host does beside may hide behind the GPU's work, and other pauses shrink with the profiler.
    """
    issuing = facts.idle(*ISSUING)
    as_recorded = ceiling(facts.wall_ns, min(saved_ns, facts.wall_ns))
    wall = max(facts.wall_ns - issuing, 1)
    without_launches = ceiling(wall, max(min(saved_ns - issuing_ns, wall), 0))
    return max(as_recorded, without_launches)


def ahead_without(facts: Facts, pieces: Bools) -> float:
    """Of the idle time, the share that goes away where the host need not issue this work, for it is ahead then."""
    program, spent = facts.program, 0
    begins = facts.work["launch_start_ns"].fill_null(0).to_numpy()
    ends = facts.work["launch_end_ns"].fill_null(0).to_numpy()
    done = np.sort(ends)
    for run in program.runs(pieces):
        begin = int(begins[run].min())
        if begin > 0:
            # What the host does before the first of them is for them, too.
            before = done[max(int(np.searchsorted(done, begin)) - 1, 0)]
            spent += int(ends[run].max()) - (min(int(before), begin) or begin)
    busy = facts.busy_ns - int(program.own_ns[pieces].sum())
    host = facts.unprofiled_share * (facts.host_needed_ns - min(spent, facts.host_needed_ns))
    return min(max(1 - max(host - busy, 0.0) / max(facts.idle_ns - facts.added_ns, 1), 0.0), 1.0)


def weight(finding: Finding) -> float:
    """What findings are ranked by."""
    return finding.gain or 0.0


def predicted(facts: Facts, *changes: str) -> float:
    """The largest factor that a replay predicts of these changes; 1 where none was replayed."""
    found = [facts.predictions[change].speedup for change in changes if change in facts.predictions]
    return max(found, default=1.0)


#: Where the window is no row of steps alone.
STEPS_ONLY: Final = Remedy(
    "Record steps only",
    "schedule = torch.profiler.schedule(wait=5, warmup=2, active=3)  # and profiler.step() after each step\n"
    "nsys profile --capture-range=cudaProfilerApi python train.py  # torch.cuda.profiler.start() after warm-up\n"
    "# or a range around each step, torch.cuda.nvtx.range('step'), or --window of the profile at hand",
    "numbers of the steady workload, without its start-up",
)

#: How the prediction of a change begins where a remedy tells it: of the program as recorded, with the profiler.
REPLAYED: Final = "replayed with the profiler's overhead"


def modelled(facts: Facts, change: str) -> str:
    """The gain, and what a change is predicted to bring in the window as recorded where that was replayed."""
    found = facts.predictions.get(change)
    if found is None:
        return GAIN
    unit = "per step" if facts.window.steps else "for the window"
    return (
        f"{GAIN}; {REPLAYED}: {found.measured_ns / _NS_PER_MS:.2f} → "
        f"{found.predicted_ns / _NS_PER_MS:.2f} ms {unit} ({times(found.speedup)})"
    )


def seen_idle(facts: Facts, claims: Claims, id_: str) -> dict[str, int | float | None]:
    """The pauses that the profile shows with a cause, and apart from them what a model adds."""
    seen = claims.seen_idle_ns(id_)
    return {
        "idle_ns": seen,
        "idle_share": seen / facts.wall_ns if facts.wall_ns else None,
        "launches_behind_ns": claims.idle_ns(id_) - seen or None,
    }
