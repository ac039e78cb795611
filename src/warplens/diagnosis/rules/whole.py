"""Rules for the profile as a whole: incomplete profiles, opaque CUDA graphs, and a GPU that is simply busy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import polars as pl

from warplens.analysis.categories import CATEGORIES, OTHER
from warplens.analysis.kernel_names import PASSES, PRODUCTS
from warplens.analysis.prediction import CHANGES
from warplens.analysis.quality import aborted_steps
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.evidence import code_loading, time_inside
from warplens.diagnosis.facts import Facts, kernel_names
from warplens.diagnosis.findings import USUAL, Finding, Remedy, Variant, ceiling, percent, times
from warplens.diagnosis.rule import GPU_BUSY_SHARE, IDLE_SHARE, STEPS_ONLY, Limit, Rule, first_of, predicted
from warplens.diagnosis.rules.kernels import busy_with
from warplens.patterns import lazy_pattern
from warplens.profile import Note, NoteLevel
from warplens.profile.peaks import UNNAMED, UNNAMED_AMD
from warplens.profile.schema import Int64s, rows_named
from warplens.profile.spelling import split_name

#: Hidden time below this share of the window changes no ranking of causes, which are told from 2 % on
#: (`raise_ceiling`). The note on hidden graphs goes by their share of the busy time (`quality.HIDDEN_SHARE`).
_HIDDEN_SHARE: Final = 0.02


class GraphOpaque(Rule):
    """Busy time inside CUDA graphs without recorded nodes. It only informs."""

    id = "graph-opaque"
    question = "Is the GPU busy inside CUDA graphs that were traced as a whole, so that their kernels are not recorded?"
    limiter = "work inside CUDA graphs that were traced as a whole"
    cause = "work inside CUDA graphs that were traced as a whole"
    raised_when = (
        "2 % of the time is hidden. Informational; it is the verdict if more than half of the time is hidden "
        "and nothing else is wrong"
    )
    title = "The GPU is busy inside CUDA graphs that were traced as a whole: their kernels were not recorded"
    evidence: ClassVar = {
        "hidden_ns": "time inside CUDA graphs traced as a whole",
        "hidden_share": "of the window",
        "graph_launches_per_step": "launches of such graphs",
        **GPU_BUSY_SHARE,
    }
    refutation = "Record with node tracing: if the graphs hold no pauses or small grids, nothing was hidden."
    describes = True

    def told(self, facts: Facts, finding: Finding) -> str:
        """The verdict: how busy the GPU is, with hidden work."""
        busy = percent(facts.busy_share)
        return f"The GPU is busy for {busy} of the time, inside CUDA graphs whose kernels were not recorded."

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        hidden = facts.own_ns_having("kind", "graph")
        if hidden < _HIDDEN_SHARE * facts.wall_ns:
            return None
        launches = int((facts.work["kind"] == "graph").sum())
        return self.described(
            facts,
            confidence="high",
            evidence={
                "hidden_ns": hidden,
                "hidden_share": hidden / facts.wall_ns,
                "graph_launches_per_step": launches / facts.steps,
            },
            remedies=(
                Remedy(
                    "Record the graphs' nodes",
                    "nsys profile --cuda-graph-trace=node --trace=cuda,nvtx python train.py",
                    "shows kernels, grids and pauses inside the graphs; each replay is a little slower while recorded",
                ),
            ),
        )


#: Notes on work or calls that happened and were not recorded.
_MISSING: Final = ("no-api-calls", "unknown-launches", "dropped-events", "lost-gpu-work", "aborted-step")

_PREFETCH: Final = Remedy(
    "Move managed memory ahead of its use",
    "cudaMemPrefetchAsync(data, bytes, where, 0, stream);  // to the GPU before kernels, to the host before it reads\n"
    "// cudaMemLocation where; before CUDA 13: cudaMemPrefetchAsync(data, bytes, device, stream)\n"
    "# or cudaMalloc and cudaMemcpyAsync instead of cudaMallocManaged",
    "pages move in large pieces, and nothing waits for each",
)

_RECAPTURE: Final = (
    "nsys profile --trace=cuda,nvtx,osrt --cuda-graph-trace=node --output profile python train.py\n"
    "# with an nsys as new as the program's CUDA"
)

#: For pauses in which the profiler blocks the host: they are not the program's.
_RECORD_LESS: Final = Remedy(
    "Record fewer things at once",
    "# PyTorch: no with_stack, no profile_memory; nsys: no CPU sampling, no backtraces\n"
    "# or choose a window after the one in which the profiler writes its data",
    "nothing of the program's own time: without the profiler these pauses do not exist",
)

#: Idle causes that are not the host's, in words.
NOT_THE_HOST: Final = {
    "dependency": "waiting for work of another stream or GPU",
    "submission": "work held back by the driver or another program",
    "profiler": "the profiler blocking the host",
    "unknown": "work whose launch was not recorded",
}


_BY_CAUSE: Final = "those pauses by [idle cause](../explanation/time-budget.md#why-the-gpu-was-idle), of the window"


#: Names of calls that release memory.
_FREES: Final = lazy_pattern(r"Free|Release|Unmap")

#: What a new recording is for.
_ANSWERS: Final = "a profile that shows what limits the program"

#: A command at the end of a sentence of advice.
_COMMAND: Final = re.compile(
    r"(?P<words>.*?):? (?P<command>(?:nsys (?:profile|export) |ncu -|warplens |torch\.profiler\.profile\().*)"
)


def _as_code(advice: str) -> str:
    """Advice as a remedy's code: its text as a comment, and a command at its end on a separate line."""
    match = _COMMAND.fullmatch(advice)
    return f"# {advice}" if match is None else f"# {match['words']}:\n{match['command']}"


def _notes_of_missing(notes: Sequence[Note]) -> list[Note]:
    """The notes after which the profile cannot answer; without any, the others on what was not recorded."""
    blocking = [note for note in notes if note.level is NoteLevel.BLOCKING]
    return blocking or [note for note in notes if note.code in _MISSING and note.level is not NoteLevel.INFO]


def _title_of_missing(facts: Facts, only_communicates: bool, start: _Start | None, notes: Sequence[Note]) -> str:
    """What is missing, in one sentence; that of a note is the first one's."""
    if only_communicates:
        return "The window has communication between GPUs but no compute."
    if start is not None:
        return start.title
    if notes:
        return notes[0].text
    if not facts.wall_ns:
        return "The window has no GPU work."
    return "The profile does not record which calls launched the work, so the causes of idle time are unknown."


def _recording_again(missing: Sequence[Note], managed: Sequence[Note]) -> tuple[Remedy, ...]:
    """How to record what is missing, or else how to avoid what managed memory hides."""
    if managed and not missing:
        return (_PREFETCH,)
    advice = [_as_code(note.remedy) for note in missing if note.remedy] or [_RECAPTURE]
    return tuple(Remedy("Record again", code, _ANSWERS) for code in advice)


@dataclass(frozen=True)
class Missing:
    """Data that were lost, aborted or never recorded."""

    finding: Finding
    decides: bool  #: whether too much is missing for any other verdict


class IncompleteProfile(Rule):
    """Data that the diagnosis needs and that were lost, aborted or never recorded."""

    id = "incomplete-profile"
    question = "Can the profile answer at all, and if not, what is missing?"
    limiter = "the profile cannot answer"
    cause = (
        "the profile cannot answer: nothing recorded, events lost, a step aborted, a start that loads code or "
        "allocates memory instead of steps, or pauses that no cause above explains"
    )
    raised_when = "something is missing. Informational; it is the verdict if any other finding would be an artefact"
    evidence: ClassVar = {
        "unexplained_idle_ns": "idle time that no finding claims",
        **GPU_BUSY_SHARE,
        **IDLE_SHARE,
        "aborted_steps_count": "steps that did not finish",
        "idle_attributed_share": "of the idle time, with a recorded cause",
        "loading_share": "of a window without repeating steps, waiting for calls that load code",
        "allocating_share": "the same for calls that allocate memory, where none frees any",
        "dependency_share": _BY_CAUSE,
        "submission_share": _BY_CAUSE,
        "profiler_share": _BY_CAUSE,
        "unknown_share": _BY_CAUSE,
    }
    refutation = "Record again as described: if the new profile shows the same, nothing was missing."
    thresholds = ("attributed_share", "aborted_share")
    describes = True

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """What is missing, or else the pauses without an explanation."""
        missing = self.missing(facts)
        return missing.finding if missing is not None else self.unexplained(facts, claims)

    def missing(self, facts: Facts) -> Missing | None:
        """Data that the diagnosis needs and that were lost, aborted or never recorded; None if nothing is missing."""
        missing = _notes_of_missing(facts.notes)
        is_blocked = any(note.level is NoteLevel.BLOCKING for note in missing)
        managed = [note for note in facts.notes if note.code == "managed-memory" and note.level is NoteLevel.WARNING]
        only_communicates = _only_communication(facts)
        start = _start(facts)
        shows_nothing = not facts.wall_ns or _hides_causes(facts) or only_communicates or start is not None
        if not missing and not shows_nothing:
            return None
        # Without GPU work, shares are unknown, not 0 %.
        aborted = len(aborted_steps(facts.timeline, facts.window)) if facts.wall_ns else None
        finding = self.described(
            facts,
            title=_title_of_missing(facts, only_communicates, start, (*missing, *managed)),
            confidence="high" if is_blocked or not facts.wall_ns else "medium",
            evidence={
                "gpu_busy_share": facts.busy_share if facts.wall_ns else None,
                "idle_share": facts.idle_ns / facts.wall_ns if facts.wall_ns else None,
                "aborted_steps_count": aborted,
                "idle_attributed_share": facts.attributed_share,
                **(start.evidence if start is not None else {}),
            },
            remedies=(STEPS_ONLY,) if start is not None else _recording_again(missing, managed),
        )
        many_aborted = (aborted or 0) >= facts.thresholds.aborted_share * facts.steps > 0
        return Missing(finding, is_blocked or shows_nothing or many_aborted)

    def unexplained(self, facts: Facts, claims: Claims) -> Finding:
        """The pauses that no rule explains: dependencies, submission by the driver, the profiler."""
        idle = unexplained_idle_ns(facts, claims)
        share = {f"{cause}_share": facts.idle(cause) / facts.wall_ns for cause in NOT_THE_HOST}
        worst = max(NOT_THE_HOST, key=facts.idle)
        shortened = predicted(facts, *CHANGES) >= facts.thresholds.raise_ceiling
        why = "no finding explains" if shortened else "no change that can be modelled shortens"
        if worst == "profiler" and facts.idle(worst):
            refutes = "Record fewer things at once: if these pauses stay, the profiler does not cause them."
            remedies: tuple[Remedy, ...] = (_RECORD_LESS,)
        else:
            refutes = (
                "Run on a single stream with no other program on the GPU: if the pauses stay, the host causes them."
            )
            remedies = (
                Remedy(
                    "Record which event each stream waits for",
                    f"{_RECAPTURE}\n# --gpu-metrics-devices=0 shows other programs on the GPU",
                    "shows what each wait is for",
                ),
                Remedy(
                    "Put dependent work on the same stream",
                    "# no torch.cuda.Stream() around work that waits for the other stream anyway\n"
                    "# close other programs that use the GPU",
                    f"at most {times(ceiling(facts.wall_ns, idle))}",
                    id="same-stream",
                ),
            )
        return self.described(
            facts,
            title=f"The GPU is idle for reasons that the profile names but cannot explain: mostly {NOT_THE_HOST[worst]}"
            if facts.idle(worst)
            else f"The GPU is idle while the host is busy, and {why} these pauses",
            variant=Variant(refutation=refutes),
            confidence="low",
            gain=ceiling(facts.wall_ns, idle),
            evidence={"unexplained_idle_ns": idle, **share},
            remedies=remedies,
        )


def unexplained_idle_ns(facts: Facts, claims: Claims) -> int:
    """Idle time that no rule explains.

    The microsecond between two kernels in the GPU's queue is not part of it: it is the GPU's own latency.
    """
    explained = sum(claims.idle_ns(id_) for id_ in claims.gaps) + facts.idle("start-latency")
    return max(facts.idle_ns - explained, 0)


def _only_communication(facts: Facts) -> bool:
    """Whether the GPU only ran collectives: a test of the links, or a slice of a trace."""
    others = pl.col("kind").is_in(["kernel", "graph"]) & (pl.col("label") != "communication")
    return bool(facts.own_ns_having("label", "communication")) and not facts.own_ns(others)


def _hides_causes(facts: Facts) -> bool:
    """Whether the causes of most of the idle time are unknown, and it is not so little that they do not matter."""
    limits = facts.thresholds
    is_unknown = facts.attributed_share is not None and facts.attributed_share < limits.attributed_share
    return is_unknown and ceiling(facts.wall_ns, facts.idle_ns) >= limits.warning_ceiling


@dataclass(frozen=True)
class _Start:
    """A window without repeating steps in which the GPU mostly waits for the host to start up.

    Repeating steps have loaded their code and filled the allocator's cache before.
    """

    #: loading, allocating: shares of the window in which the GPU waits for calls that load code, and that allocate
    loading: float
    allocating: float

    @property
    def title(self) -> str:
        """One sentence for people."""
        does = "the host loads code" if self.loading >= self.allocating else "memory is allocated"
        waits = percent(max(self.loading, self.allocating))
        return f"The window has a start-up: for {waits} of it the GPU waits while {does}."

    @property
    def evidence(self) -> dict[str, float | None]:
        """The shares, those of 0 left out."""
        return {"loading_share": self.loading or None, "allocating_share": self.allocating or None}


def _start(facts: Facts) -> _Start | None:
    """The start-up that takes most of the window; None if there is none."""
    if len(facts.window.steps) > 1 or not facts.wall_ns:
        return None
    loading = int(time_inside(code_loading(facts, slow_launches=True), facts.gaps).sum()) / facts.wall_ns
    # Memory that is freed again fills no cache.
    frees = rows_named(facts.timeline.api_calls_in(facts.window)["name"], lambda name: _FREES.search(name) is not None)
    allocating = 0.0 if frees.any() else facts.idle("allocation") / facts.wall_ns
    return _Start(loading, allocating) if max(loading, allocating) > facts.thresholds.dominant_share else None


#: Sections of Nsight Compute that show why kernels of a category are below their roof; all others: `_OTHERS`.
_SECTIONS: Final = {
    **dict.fromkeys(PRODUCTS, ("ComputeWorkloadAnalysis", "WarpStateStats", "Occupancy")),
    **dict.fromkeys((*PASSES, "gather-scatter", "sort-topk"), ("MemoryWorkloadAnalysis", "Occupancy")),
}
_OTHERS: Final = ("WarpStateStats",)


def roof_known(facts: Facts) -> bool:
    """Whether enough of the work is known to compute its distance from the roof."""
    return facts.known_work_share >= facts.thresholds.known_work_share


def is_known(finding: Finding) -> bool:
    """Whether data show this limiter.

    False for `incomplete-profile`, which names none, for `padded-work`, since no profile records padding, and for
    `below-roof` if the work of the busy GPU is unknown.
    """
    if finding.id in (IncompleteProfile.id, "padded-work"):
        return False
    return finding.id != BelowRoof.id or "to_roof_share" in finding.evidence


#: Parts of the gap to the practical roofs, in words. Copies have no roof: all of their time counts.
_PARTS_OF_GAP: Final = {
    "idle_share": "idle",
    "products_above_share": "in matrix products and attention",
    "passes_above_share": "in passes over memory",
    "others_above_share": "in other work",
}


def _above(facts: Facts) -> pl.Series:
    """Time of each piece of work above its practical roof; all of its time if its work is unknown."""
    known = pl.when(pl.col("known") != "none").then(pl.col("owned_ns") - pl.col("roof_ns")).otherwise("owned_ns")
    return facts.at_roof.select(known.fill_null(0)).to_series()


def _gap(facts: Facts) -> dict[str, float]:
    """The parts of the gap to the practical roofs, as shares of the window."""
    if not facts.wall_ns:
        return {}
    roof = facts.at_roof["roof_ns"].fill_null(0)
    frame = facts.work.select("label", above=(pl.col("own_ns") - roof) / facts.wall_ns)
    label = pl.col("label")
    products, passes = label.is_in(PRODUCTS), label.is_in(PASSES)
    kinds = {"products": products, "passes": passes, "others": ~products & ~passes}
    sums = frame.select(pl.col("above").filter(which).sum().alias(kind) for kind, which in kinds.items()).row(0)
    shares = (facts.idle_ns / facts.wall_ns, *(max(float(part), 0.0) for part in sums))
    return dict(zip(_PARTS_OF_GAP, shares, strict=True))


class BelowRoof(Rule):
    """A GPU that is busy with kernels far from their roofs, for unknown reasons. It only informs."""

    id = "below-roof"
    question = "Are busy kernels far from their roofs without a known cause?"
    limiter = "kernels that are not shown to be near their roof"
    cause = "not shown to be near the roof, cause unknown"
    raised_when = (
        "the GPU is busy, or starts queued work, for 80 % of the time, no finding is a warning, and it is not shown to "
        "be `saturated`: the headroom to the practical roof is 15 % or more, or the work of less than four fifths of "
        "the busy time is known. Informational"
    )
    evidence: ClassVar = {
        **GPU_BUSY_SHARE,
        "above_roof_share": (
            "of the window, kernel time above the practical roof, as in headroom; null if too little work is known"
        ),
        "to_roof_share": "the same plus idle time: the headroom to the practical roof; null likewise",
        "idle_share": "of the window; this and the next three are the parts of that headroom, null likewise",
        "products_above_share": "of the window, products above their practical roof",
        "passes_above_share": "passes over memory above their practical roof, of the window",
        "others_above_share": "all other work above its practical roof, of the window; copies and fills count whole",
        "known_work_share": "of the busy time, with known FLOPs and bytes; null without a roof",
        "unprofiled_busy_share": "estimated busy share without the profiler's time in launches",
        "starting_share": "of the window, pauses in which queued work was about to start",
        "idle_ns_per_step": "pauses of a step",
    }
    idle: ClassVar = Variant(
        "The kernels of the GPU are near their roofs; what is left is its idle time",
        refutation="Time the step without a profiler (torch.cuda.Event): if it is faster by the idle time, the "
        "profiler made the pauses, and nothing is left to gain.",
    )
    refutation = (
        "Collect counters of the kernels with the most time: if each is at 85 % of a roof, nothing is left to gain."
    )
    thresholds = ("quiet_busy_share", "roof_headroom_share", "known_work_share")
    describes = True
    worth_saying = Limit(0.01, "A smaller share of the window is not worth a clause of the headline.")

    def told(self, facts: Facts, finding: Finding) -> str:
        """The verdict: how busy the GPU is, and the parts of the gap to its roofs, the largest first."""
        beside, evidence = "", finding.evidence
        if facts.busy_share < facts.thresholds.quiet_busy_share:
            unprofiled, starting = evidence["unprofiled_busy_share"], evidence["starting_share"]
            if unprofiled - facts.busy_share >= self.worth_saying:
                beside += f" (an estimated {percent(unprofiled)} without the profiler's overhead)"
            if starting >= self.worth_saying:
                beside += f", starts queued work in another {percent(starting)}"
        busy = f"The GPU is {busy_with(facts, beside)}"
        if not roof_known(facts):
            known = f"FLOPs and bytes are known for {percent(facts.known_work_share)} of its busy time"
            return f"{busy}; how near its kernels are to their roofs is unknown: {_no_peaks(facts) or known}."
        if _waits(finding):
            left = "mostly its" if evidence["above_roof_share"] >= self.worth_saying else "its"
            return (
                f"{busy}, near the roofs of its kernels: what is left is {left} idle time, "
                f"{percent(evidence['idle_share'])} of the time."
            )
        gap = sorted(((evidence[name], words) for name, words in _PARTS_OF_GAP.items()), reverse=True)
        parts = ", ".join(f"{percent(share)} {words}" for share, words in gap if share >= self.worth_saying)
        return (
            f"{busy}, but not near its roofs: without idle time and at the practical roof of its kernels it would "
            f"take {percent(facts.to_roof_share)} less time ({parts})."
        )

    def place_time(self, facts: Facts) -> Int64s | None:
        """Time of each piece of work above its roof; all of its time if its work is unknown. None for idle time."""
        return None if _is_idle(facts) else _above(facts).cast(pl.Int64).to_numpy()

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it. `Saturated` is asked before."""
        occupied = facts.busy_ns + facts.idle("start-latency")
        wall = facts.wall_ns - facts.added_ns
        if not facts.wall_ns or occupied < facts.thresholds.quiet_busy_share * wall:
            return None
        if facts.own_ns_having("kind", "graph") > facts.thresholds.dominant_share * facts.wall_ns:
            return None  # `graph-opaque` applies; counters of the few kernels outside the graphs would not help
        known, is_idle = roof_known(facts), _is_idle(facts)
        above = _above(facts)
        names = kernel_names(facts, above)
        pattern = "|".join(dict.fromkeys(re.escape(split_name(name).short or name) for name in names))
        shapes = facts.timeline.trace.operators["input_shapes"]
        counters = Remedy(
            "Collect counters of the kernels with the most time above their roof",
            f"ncu --set roofline {_sections(facts, above)} -k 'regex:^({pattern})$' -c 20 python train.py\n"
            "warplens diagnose PATH --counters REPORT"
            if facts.of_nvidia
            else "rocprof-compute profile -n counters -- python train.py  # a few steps: each pass runs again\n"
            "rocprof-compute analyze -p workloads/counters/*  # read there: Warplens reads counters of ncu",
            "shows which roof limits each of them, and why",
        )
        return self.described(
            facts,
            title=first_of(
                (is_idle, self.idle.title),
                (known, "The GPU is busy but not near its roofs, and no single cause stands out"),
                default="The GPU is busy; this profile does not show how near its kernels are to their roofs",
            ),
            variant=self.idle if is_idle else USUAL,
            confidence="medium",
            evidence={
                # Shares of the known part would look like shares of the whole.
                "above_roof_share": facts.above_roof_share if known else None,
                "to_roof_share": facts.to_roof_share if known else None,
                **(_gap(facts) if known else {}),
                # Without a roof, no work counts as known, although its operations may be.
                "known_work_share": None if _no_peaks(facts) else facts.known_work_share,
                "unprofiled_busy_share": min(facts.busy_ns / max(wall, 1), 1.0),
                "starting_share": facts.idle("start-latency") / facts.wall_ns,
                "idle_ns_per_step": facts.idle_ns / facts.steps,
            },
            where=() if is_idle else names,
            remedies=(
                _find_pauses(facts) if is_idle else None,
                _name_gpu(facts) if _no_peaks(facts) else None,
                None if known or shapes.null_count() < len(shapes) else _shapes(facts),
                None if is_idle and facts.above_roof_share < self.worth_saying else counters,
            ),
        )


#: From this share of the headroom on, idle time is what matters, and the kernels are near their roofs.
_IDLE_OF_HEADROOM: Final = 0.75


def _is_idle(facts: Facts) -> bool:
    """Whether the headroom to the practical roofs is idle time for the most part."""
    idle_share = facts.idle_ns / facts.wall_ns if facts.wall_ns else 0.0
    return roof_known(facts) and idle_share > _IDLE_OF_HEADROOM * facts.to_roof_share


def _waits(finding: Finding) -> bool:
    """`_is_idle`, of the finding of such a window."""
    evidence = finding.evidence
    return "to_roof_share" in evidence and evidence["idle_share"] > _IDLE_OF_HEADROOM * evidence["to_roof_share"]


def headroom_words(finding: Finding) -> str:
    """What would have to come true for the headroom of `BelowRoof` to be saved, as a clause."""
    if _waits(finding):
        return "if it were never idle"
    return "if its kernels reached their practical roofs"


def _find_pauses(facts: Facts) -> Remedy:
    return Remedy(
        "Find out what the GPU waits for",
        "warplens budget PATH  # its idle time by cause\n"
        "warplens code PATH  # operator, range and source line of each wait, copy and launch",
        f"at most {times(ceiling(facts.wall_ns, facts.own_idle_ns))}: all of its idle time",
    )


def _unlisted(facts: Facts) -> list[str]:
    """Names of the GPUs of which no peaks are known; none for GPUs without a name."""
    return sorted({device.name for device in facts.devices} - {UNNAMED, UNNAMED_AMD})


def _no_peaks(facts: Facts) -> str:
    """Why no roof of the GPUs is known, as a clause; empty if one is known."""
    if facts.peaks:
        return ""
    names = _unlisted(facts)
    return f"no peaks are known of the {', '.join(names)}" if names else "the profile does not name its GPU"


def _name_gpu(facts: Facts) -> Remedy:
    """Advice for a GPU without peaks: its name, or that of a similar one."""
    how = "warplens diagnose PATH --gpu '<name>'  # such as " + ("H100 PCIe" if facts.of_nvidia else "MI300X")
    if names := _unlisted(facts):
        return Remedy(
            "Name a GPU with about the same peaks",
            f"{how}\n# in place of the {', '.join(names)}",
            "gives the roofs of that data sheet, which are as near to yours as the two GPUs are alike",
        )
    return Remedy("Name the GPU that it ran on", how, "gives the roofs of its data sheet, which the profile does not")


#: What shapes show of work whose operations or bytes are unknown: products first.
_SHOWN_BY_SHAPES: Final = (
    (PRODUCTS, "shows how far each matrix product is from its roof, which needs its inner dimension"),
    (
        tuple(name for name in CATEGORIES if name not in (OTHER, "triton", "communication")),
        "shows how many bytes each pass over memory moves, and so how far it is from its roof",
    ),
)

#: Work of a kind with a smaller share of the wall time is no reason to record again.
_LEAST_UNKNOWN: Final = 0.01


def _shapes(facts: Facts) -> Remedy | None:
    """Advice to record shapes, with what they show of the unknown work; None if they show nothing of it.

    They show nothing of kernels whose names do not tell what they compute.
    """
    unknown = facts.work["label"].filter(facts.at_roof["known"] == "none").cast(pl.String)
    owned = facts.at_roof["owned_ns"].filter(facts.at_roof["known"] == "none")
    for labels, expected in _SHOWN_BY_SHAPES:
        if int(owned.filter(unknown.is_in(labels)).sum()) >= _LEAST_UNKNOWN * facts.wall_ns:
            how = (
                "with torch.profiler.profile(record_shapes=True) as prof: step()\n"
                "prof.export_chrome_trace('TRACE')\n"
                "# or: warplens collect torch -- python train.py\n"
                "warplens headroom PATH --with TRACE"
            )
            return Remedy("Record the shapes of the operators", how, expected, id="record-shapes")
    return None


def _sections(facts: Facts, above: pl.Series) -> str:
    """Options for the sections of the category with the most time above its roof."""
    frame = facts.work.select("label", above.alias("above"))
    by_label = frame.group_by("label").agg(pl.col("above").sum()).with_columns(pl.col("label").cast(pl.String))
    most = by_label.sort("above", "label", descending=[True, False])
    category = most["label"][0] if most.height else ""
    return " ".join(f"--section {name}" for name in _SECTIONS.get(category, _OTHERS))


class Saturated(Rule):
    """The GPU works nearly all of the time, near its roofs. It only informs.

    The microsecond between two kernels in the GPU's queue counts as work: nothing on the host can shorten it.
    """

    id = "saturated"
    question = "Is the GPU busy nearly all of the time, and near its roofs?"
    limiter = "nothing: the GPU is busy"
    cause = "nothing: the GPU is busy"
    raised_when = (
        "it is busy for 90 % of the time, the work of four fifths of that is known, the headroom to the practical "
        "roof is under 15 %, and no finding is a warning. Informational"
    )
    title = "The GPU is busy nearly all of the time: the host is not the limit"
    evidence: ClassVar = {
        **GPU_BUSY_SHARE,
        "to_roof_share": "headroom to the practical roof of the kernels, idle time included",
        "between_queued_kernels_share": "of the window, gaps of about 1 µs between kernels that are already queued",
        "idle_ns_per_step": "idle time",
        "kernels_per_step": "kernels",
    }
    refutation = "Time the step without a profiler: if it is much faster, the profile does not show the real program."
    thresholds = ("busy_share", "roof_headroom_share", "known_work_share")
    describes = True

    def told(self, facts: Facts, finding: Finding) -> str:
        """The verdict: nothing to fix."""
        return f"This profile shows nothing to fix: the GPU is {busy_with(facts)}, near the roofs of its kernels."

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        occupied = facts.busy_ns + facts.idle("start-latency")
        if not facts.wall_ns or occupied < facts.thresholds.busy_share * facts.wall_ns:
            return None
        if not roof_known(facts) or facts.to_roof_share >= facts.thresholds.roof_headroom_share:
            return None
        hidden = facts.own_ns_having("kind", "graph")
        return self.described(
            facts,
            confidence="high" if facts.sure and not hidden else "medium",
            gain=ceiling(facts.wall_ns, facts.own_idle_ns),
            evidence={
                "to_roof_share": facts.to_roof_share,
                "between_queued_kernels_share": facts.idle("start-latency") / facts.wall_ns,
                "idle_ns_per_step": facts.idle_ns / facts.steps,
                "kernels_per_step": int((facts.work["kind"] == "kernel").sum()) / facts.steps,
            },
            remedies=(
                Remedy(
                    "Stop optimizing the host",
                    "warplens kernels PATH --by category  # then counters of the largest: ncu --set full",
                    "launches, waits and input cannot gain more than the idle time",
                ),
            ),
        )
