"""Rule for a GPU that waits for launches, with loops and recurrent networks that are launched in turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Literal

import numpy as np
import polars as pl

from warplens.analysis.frames import number, once
from warplens.analysis.kernel_names import PASSES
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts, range_names
from warplens.diagnosis.findings import GAIN, USUAL, Confidence, Finding, Remedy, Variant
from warplens.diagnosis.rule import (
    GPU_BUSY_SHARE,
    IDLE_NS,
    IDLE_SHARE,
    LAUNCHES_PER_STEP,
    Limit,
    Rule,
    bringing,
    modelled,
    predicted,
)
from warplens.diagnosis.rules.copies import copies_grow
from warplens.diagnosis.rules.kernels import as_one_batch, filled_share, more_at_a_time, passes_apart
from warplens.diagnosis.rules.optimizer import capturable, fused_call, optimizer_class
from warplens.diagnosis.structure import MOST_KERNELS, Passes, backward_work, loops_of, turns_of_step
from warplens.diagnosis.unprofiled import Gain
from warplens.patterns import lazy_pattern
from warplens.profile.schema import name_categories

#: For idle time before launches of CUDA graphs.
_FROM_GRAPHS: Final = (
    Remedy(
        "Launch the next graph before this one has finished",
        "# g.replay() returns at once: do not wait between replays, read results one replay later",
        "the pauses between replays go away",
        id="graphs-ahead",
    ),
    Remedy(
        "Put more into one graph",
        "# capture several steps, or the whole step where parts are launched one by one",
        "fewer launches for the same work",
        id="larger-graphs",
    ),
)


#: Code for the graph of a step: of a forward pass alone, and of one that trains.
_CAPTURED: Final = (
    "model = torch.compile(model, mode='reduce-overhead')\n"
    "# or by hand, without gradients, after a few calls on a side stream, torch.cuda.stream(side), as warm-up:\n"
    "g = torch.cuda.CUDAGraph()\n"
    "with torch.cuda.graph(g): y = model(static_x)\n"
    "static_x.copy_(x); g.replay()  # either way, the next replay overwrites y: y.clone() keeps it"
)


def _captured_training(facts: Facts) -> str:
    """Code for the graph of a step that trains, with the warm-up that this program's gradients and optimizer need."""
    ranges = facts.timeline.trace.ranges["name"]
    of_ranks = name_categories(ranges).str.starts_with("DistributedDataParallel").any()
    return (
        "model = torch.compile(model, mode='reduce-overhead')  # forward and backward pass\n"
        "update = torch.compile(optimizer.step)  # a few kernels; with mode='reduce-overhead', only if\n"
        "# torch.compiler.cudagraph_mark_step_begin() begins each step and zero_grad(set_to_none=True) ends it\n"
        + (
            "# or the whole step by hand, with TORCH_NCCL_ASYNC_ERROR_HANDLING=0: DistributedDataParallel(model) made\n"
            "# on a side stream, with torch.cuda.stream(side), and at least 11 steps there as warm-up;\n"
            if of_ranks
            else "# or the whole step by hand, after warm-up steps on a side stream, torch.cuda.stream(side);\n"
        )
        + f"# {capturable(optimizer_class(facts, facts.program.optimizing))}\n"
        "optimizer.zero_grad(set_to_none=True); g = torch.cuda.CUDAGraph()\n"
        "with torch.cuda.graph(g): loss = loss_of(model(static_x), static_y); loss.backward(); optimizer.step()\n"
        "static_x.copy_(x); static_y.copy_(y); g.replay()"
    )


#: For steps whose launches mostly come from one loop.
_ALL_TURNS: Final = Remedy(
    "Do the work of all turns at once",
    "# one operation over the whole tensor instead of a loop over its rows, times, classes or words:\n"
    "# broadcasting, torch.where, cumsum, a product with a matrix of factors, torch.vmap, one gather for all\n"
    "# if a turn needs the result of the last: compile the loop, or write one kernel for the recurrence (a scan)",
    f"{GAIN}: the launches of one turn instead of all",
    id="all-turns-at-once",
)


#: What that brings if each turn searches for the largest or smallest value.
_IN_SEQUENCE: Final = (
    "unknown: each turn searches for a value, and the next one probably needs its place; then only a compiled loop or "
    "a kernel of your own does all turns at once"
)


#: For recurrent networks that are launched one time step at a time.
_ONE_RECURRENCE: Final = Remedy(
    "Run the whole recurrence in one call",
    "y, state = nn.LSTM(width, width, layers, batch_first=True)(x)  # instead of nn.LSTMCell in a loop\n"
    "# torch.backends.cudnn.enabled = True, inputs and weights in one format, nothing between the time steps\n"
    "# if another network runs between time steps: a CUDA graph of the loop",
    f"{GAIN}: cuDNN issues the time steps without the framework in between, and fuses all but the products",
)

#: Least share of the kernels that start at once on a waiting GPU if the host sets the pace.
_PROMPT_SHARE: Final = 0.5

#: Most kernels between two cells of one recurrence.
_MOST_BETWEEN_CELLS: Final = 64
#: Least cells of a recurrence: fewer time steps are no loop.
_LEAST_CELLS: Final = 8
#: Share of the host's time for such a loop that one call saves.
_CELLS_SAVED_SHARE: Final = 0.78


#: For short sequences of kernels that repeat: a graph of one turn is launched about as often as its kernels.
_MANY_TURNS: Final = Remedy(
    "Capture many turns of the loop in one CUDA graph",
    "# the kernels of ten turns or more between the begin and the end of one capture, then one launch for all of them\n"
    "# a graph of a single turn would be launched as often as now",
    f"{GAIN}: one launch for all kernels of ten turns",
    captures=True,
)
#: Most launches of such a turn, and share of the host's time for them that goes away.
_FEW_LAUNCHES: Final = 3
_TURNS_SAVED_SHARE: Final = 0.9


def _many_turns(facts: Facts) -> Gain | None:
    """Gain of a graph of many turns; None unless steps are short sequences of kernels that the host never waits for."""
    launches = facts.work.height / facts.process_steps
    found_by_repetition = facts.window.steps and facts.phase is None and not facts.timeline.steps.is_sure
    if not found_by_repetition or launches > _FEW_LAUNCHES or facts.waits_inside:
        return None
    return facts.replayed(calls=np.full(facts.work.height, _TURNS_SAVED_SHARE))


#: For loops over networks of equal sizes.
_STACKED: Final = (
    "# parts of equal sizes that do not need one another, such as experts: their weights stacked, and one torch.bmm\n"
    "# for all (torch.func.stack_module_state and torch.vmap)\n"
)

#: Kernels that sum up the parts of a product, and multiply nothing.
_SUMS_UP: Final = lazy_pattern(r"(?i)split_?k_?reduce")
#: Least share of the launches of a step in loops over networks.
_STACKED_SHARE: Final = 0.5


def _loops_over_networks(facts: Facts) -> bool:
    """Whether most launches of the first step are loops of many equal turns with several products and no norms.

    A turn with one product may be a layer of a deep network, and one with norms a block of it. The profile does not
    show whether a turn needs the turn before.
    """
    program = facts.program
    if facts.phase is not None or not facts.window.steps:
        return False
    rows = next(iter(program.by_step()), None)
    if rows is None or len(rows) > MOST_KERNELS:
        return False
    others = program.labelled("normalization", "softmax", "attention", "communication", "convolution")
    others = others | program.marked("recurrent-cell") | program.optimizing
    turns = (
        (rows[begin : begin + period], stop - begin) for begin, stop, period in loops_of(program.launched_as(rows))
    )
    names = program.full_names()
    looped = 0
    for turn, length in turns:
        products = np.unique(program.name_codes[turn[program.products[turn]]])
        if sum(_SUMS_UP.search(names[code]) is None for code in products) > 1 and not others[turn].any():
            looped += length
    return looped >= _STACKED_SHARE * len(rows)


#: For programs that launch most of a step behind the backward pass.
_UPDATED: Final = (
    "update = torch.compile(optimizer.step)  # most launches are behind the backward pass\n"
    "# an optimizer that works on each matrix: matrices of equal shape stacked, and one torch.bmm for all\n"
)


@once
def _behind_backward(facts: Facts) -> float | None:
    """Kernels per step that start behind the last one of its backward pass, if they are most; else None."""
    if facts.phase is not None or not facts.trains or not facts.window.steps:
        return None
    backward, kernels = backward_work(facts), facts.program.is_kernel
    starts, behind = facts.work["start_ns"].to_numpy(), 0
    for rows in facts.program.by_step():
        of_backward = starts[rows[backward[rows]]]
        if len(of_backward):
            behind += int((kernels[rows] & (starts[rows] > of_backward.max())).sum())
    return behind / facts.process_steps if 2 * behind > kernels.sum() else None


@dataclass(frozen=True, eq=False)
class _Repetition:
    """Work that a step launches many times, one after another, and could launch once."""

    kind: Literal["passes", "turns", "cells", "none"]  #: equal passes, turns of a loop, cells of a recurrent network
    at_once: Remedy | None  #: to launch it once
    gain: Gain | None  #: replayed gain of that remedy; None if unknown
    evidence: Mapping[str, float]  #: numbers that show it
    removed_ns: int = 0  #: GPU time that goes away with it
    is_sequential: bool = False  #: whether each turn probably needs the result of the last

    def beside(self) -> Remedy | None:
        """Its remedy beside another one, with its own gain; none is told of turns that probably need each other."""
        if self.at_once is None or not self.is_sequential:
            return self.at_once and bringing(self.at_once, self.gain)
        return replace(self.at_once, expected=_IN_SEQUENCE)


_NO_REPETITION: Final = _Repetition("none", None, None, {})


def _reaches(gain: Gain | None, other: Gain | None) -> bool:
    """Whether a gain is known, and no smaller than the other one, if that is known."""
    return gain is not None and (other is None or gain.expected >= other.expected)


def _equal_passes(facts: Facts, passes: Passes) -> _Repetition:
    """These passes of a step, with the gain of one batch instead; no repetition for one pass or an unknown gain.

    One batch needs one set of launches, and its kernels take as long as they fill the GPU. The profile does not show
    how much of the host's other work is per pass and how much per item: half of it is expected to go away.
    """
    if passes.count <= 1:
        return _NO_REPETITION
    saved = passes.saved_share(facts, filled_share(facts))
    gain = facts.replayed(time=saved, calls=passes.calls(facts), stalls=0.5)
    if gain is None:
        return _NO_REPETITION
    shown = {"passes_per_step": passes.count}
    return _Repetition("passes", as_one_batch(passes), gain, shown, passes.removed_ns(facts, saved))


def _turns(facts: Facts) -> _Repetition | None:
    """The turns of a loop, with the gain of the work of all turns at once; None without such a loop."""
    turns = turns_of_step(facts)
    if turns is None:
        return None
    gain = facts.replayed(time=turns.share, calls=turns.share, elsewhere=True)
    shown = {"turns_per_step": turns.count, "launches_per_turn_factor": turns.kernels}
    if turns.copies:
        shown["copies_per_turn_factor"] = turns.copies
    return _Repetition("turns", _ALL_TURNS, gain, shown, is_sequential=turns.searches)


def _cells(facts: Facts, graph_gain: Gain | None) -> _Repetition | None:
    """The cells of a recurrence that are launched one by one, with the gain of one call for all.

    None without such cells, for an unknown gain, and if a CUDA graph gains more.

    One call removes the copies, sums and casts between cells. Products and the arithmetic of the cells stay. cuDNN
    still launches a few kernels per time step: two LSTMs took a quarter and a fifth of the host time of their loops
    (26 and 34 µs per time step, forward or backward, on an H200).
    """
    program, cells = facts.program, facts.program.marked("recurrent-cell")
    if cells.sum() < _LEAST_CELLS * facts.steps:
        return None
    inside = np.zeros(facts.work.height, dtype=np.bool_)
    for rows in program.by_step():
        places = np.flatnonzero(cells[rows])
        for group in np.split(places, np.flatnonzero(np.diff(places) > _MOST_BETWEEN_CELLS) + 1):
            if len(group) >= _LEAST_CELLS:
                inside[rows[group[0] : group[-1] + 1]] = True
    if not inside.any():
        return None
    time = (inside & program.passes & ~cells).astype(np.float64)
    gain = facts.replayed(time=time, calls=np.where(inside, _CELLS_SAVED_SHARE, 0.0), elsewhere=True)
    if not _reaches(gain, graph_gain):
        return None
    shown = {"cells_per_step": float(cells.sum()) / facts.steps}
    return _Repetition("cells", _ONE_RECURRENCE, gain, shown, int(time @ program.own_ns))


def _obstacles(facts: Facts) -> str:
    """Text after the gain of a graph: what must go before the step can be captured, such as a growing cache."""
    allocates = facts.host.allocations >= facts.thresholds.allocations_per_step * facts.process_steps
    calls = (
        ("wait", facts.host.waits, facts.waits_inside),
        ("allocation", facts.host.allocations, allocates),
    )
    per_step = [(name, max(round(count / facts.process_steps), 1)) for name, count, seen in calls if seen]
    inside = " and ".join(f"{count:,} {name}{'s' * (count > 1)}" for name, count in per_step)
    removed = f"{inside} per step (warplens code lists them)" if per_step else ""
    grown = (
        "copies that grow each time: first a cache of fixed size (transformers: StaticCache)"
        if copies_grow(facts)
        else ""
    )
    told = "; ".join(filter(None, (removed, grown)))
    return f"; the gain includes the removal of what no graph can capture: {told}" if told else ""


def _graph(facts: Facts) -> tuple[Remedy, Gain | None]:
    """The remedy of a CUDA graph, of the step or of many short turns in it, and its replayed gain."""
    of_step, of_turns = facts.replayed("cuda-graph"), _many_turns(facts)
    if of_turns is not None and not _reaches(of_step, of_turns):
        return _MANY_TURNS, of_turns
    how = _captured_training(facts) if facts.trains else _CAPTURED
    expected = modelled(facts, "cuda-graph") + _obstacles(facts)
    return Remedy("Replay the step from a CUDA graph", how, expected, id="cuda-graph", captures=True), of_step


def _fewer_kernels(facts: Facts, *, networks: bool) -> Remedy:
    """The remedy to launch fewer kernels; `networks` says whether loops over networks may be stacked."""
    return Remedy(
        "Launch fewer kernels",
        "model = torch.compile(model)  # fuses elementwise work\n"
        + (_UPDATED if _behind_backward(facts) is not None else "")
        + (_STACKED if networks and _loops_over_networks(facts) else "")
        + "# F.scaled_dot_product_attention for written-out attention\n"
        f"# a fused optimizer for its kernels: {fused_call(facts)}",
        "in proportion to the launches saved",
        id="fewer-launches",
        compiles=True,
    )


def _more_in_each(facts: Facts, replayed: Gain | None) -> Remedy:
    """The remedy of larger batches, with its own gain if launches cost much: else more work in each brings little."""
    larger = Remedy(
        "Give each launch more work",
        "DataLoader(dataset, batch_size=larger)  # until kernels run longer than the launch interval"
        if facts.trains
        else "# a larger batch: answer several requests, or chunks of the input, in one pass",
        "the same step time for more samples, until the GPU is busy",
        id="more-work-per-launch",
    )
    costs_much = replayed is not None and replayed.expected >= facts.thresholds.warning_ceiling
    return more_at_a_time(facts, larger) if costs_much else larger


def _confidence(facts: Facts) -> Confidence:
    """How sure the finding is: if the host sets the pace, most kernels start at once on a waiting GPU."""
    prompt = facts.host.launches.prompt_share if facts.phase is None else None
    if not facts.window.steps:
        return "low"
    return "high" if facts.sure and (prompt is None or prompt >= _PROMPT_SHARE) else "medium"


def _launch_rate(facts: Facts) -> dict[str, float | None]:
    """How many kernels the host launches, how fast, and how long they take; the pace is that of whole windows."""
    durations = pl.Series(facts.lengths).filter(facts.work["kind"] == "kernel")
    needed = {
        "launches_per_step": durations.len() / facts.process_steps,
        "kernel_median_ns": number(durations.median()),
        "host_needed_ns_per_step": facts.host_needed_ns / facts.process_steps,
    }
    if facts.phase is not None:
        return needed
    launches = facts.host.launches
    return {
        **needed,
        "launch_interval_median_ns": launches.interval_median_ns,
        "launch_call_median_ns": launches.api_median_ns,
        "kernels_shorter_than_interval_share": launches.shorter_than_interval_share,
        "launched_onto_idle_gpu_share": launches.prompt_share,
    }


class LaunchOverhead(Rule):
    """Idle time while the host was between or inside launching calls, less the claims of waits and the optimizer."""

    id = "launch-overhead"
    model = "host"
    change = "cuda-graph"
    question = "Does the GPU wait for work that the host is still issuing?"
    limiter = "the host cannot issue work as fast as the GPU finishes it"
    cause = "the host's launch rate: the GPU is idle because the next kernel, or CUDA graph, is launched too late"
    raised_when = "it costs 2 %. Informational where the host is well ahead of the GPU without the profiler"
    claimed = (
        "idle time while the host was between or inside launching calls, including the GPU's own latency. A warning "
        "from 1.25× if the host may be ahead of the GPU without the profiler"
    )
    headline = (
        "Limited by the host's launch rate: for {share} of the time the GPU had no work, because the next kernel "
        "was launched too late"
    )
    title = "The GPU waits because the host cannot issue work as fast as the GPU finishes it"
    evidence: ClassVar = {
        **IDLE_NS,
        **IDLE_SHARE,
        **GPU_BUSY_SHARE,
        **LAUNCHES_PER_STEP,
        "behind_backward_per_step": "of these, behind the backward pass, as the optimizer is, if they are most",
        "passes_per_step": "equal passes, which could be one batch if none needs the result of another",
        "cells_per_step": "time steps of a recurrent network that are launched one by one",
        "turns_per_step": "turns of a loop that launches the same few small kernels in each turn",
        "launches_per_turn_factor": "kernels per turn",
        "copies_per_turn_factor": "copies and fills per turn, if any",
        "launch_interval_median_ns": "from one launch to the next on the thread that launches most",
        "launch_call_median_ns": "duration of the launching call",
        "kernel_median_ns": "duration of the kernels",
        "kernels_shorter_than_interval_share": "kernels shorter than that interval",
        "launched_onto_idle_gpu_share": (
            "kernels that started less than 5 µs after their launch: the GPU had been waiting for them"
        ),
        "host_needed_ns_per_step": (
            "host time to issue the work, of one process: from the first launch to the last, without waits for a busy "
            "GPU"
        ),
    }
    refutation = (
        "Double the batch: if the step takes about twice as long, the GPU was the limit, not the host. Time the "
        "step without a profiler (torch.cuda.Event): tracing makes every launch slower."
    )
    thresholds = ("unsure_warning_ceiling",)

    #: For kinds of repetition.
    variants: ClassVar[Mapping[str, Variant]] = {
        "turns": Variant("A loop launches the same few small kernels in every turn, and the GPU waits for them"),
        "cells": Variant("A recurrent network is launched one time step after another, and the GPU waits for it"),
    }

    ahead_share = Limit(0.8, "A host that needs at most 80 % of the GPU's time is ahead of it without the profiler.")

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        claimed = claims.idle_ns(self.id)
        if not claimed:
            return None
        passes = passes_apart(facts, claims)
        graph, graph_gain = _graph(facts)
        batch = _equal_passes(facts, passes)
        if _reaches(batch.gain, graph_gain):
            repetition = batch
        else:
            repetition = _turns(facts) or _cells(facts, graph_gain) or _NO_REPETITION
        from_graphs = facts.graphed or facts.idle("graph-launch") > facts.idle("launch")
        # Turns that need the result of the last turn cannot become one, but a graph can replay them.
        graph_first = repetition.is_sequential and graph_gain is not None and not from_graphs
        first = _NO_REPETITION if graph_first else repetition
        replayed = first.gain or graph_gain
        remedies: tuple[Remedy | None, ...]
        if from_graphs:
            remedies = (first.at_once if first.kind != "cells" else None, *_FROM_GRAPHS)
        else:
            remedies = (
                first.at_once,
                graph if replayed is graph_gain else bringing(graph, graph_gain),
                *(one.beside() for one in (repetition, batch) if one is not first),
                _fewer_kernels(facts, networks=repetition.kind in ("cells", "none")),
                _more_in_each(facts, replayed),
            )
        # Without the profiler, the host may be ahead of the GPU; a loop of tiny kernels is worth fixing all the same.
        is_loop = repetition.kind == "turns"
        return self.raised(
            facts,
            claimed,
            variant=self.variants.get(repetition.kind, USUAL),
            confidence=_confidence(facts),
            evidence={
                "idle_ns": claimed,
                "idle_share": claimed / facts.wall_ns,
                "behind_backward_per_step": _behind_backward(facts),
                **repetition.evidence,
                **_launch_rate(facts),
            },
            where=range_names(facts, facts.gaps["range"], claims.pauses(self.id)),
            issuing_ns=claims.issuing_ns[self.id],
            # Graphs remove every pause, and fused kernels most passes over memory. One batch instead of equal passes
            # may take no longer than one of them.
            bound_ns=facts.own_idle_ns
            + max(
                facts.own_ns_having("label", *PASSES),
                int(facts.program.own_ns[passes.work].sum() * passes.freed),
            ),
            at_least=predicted(facts, "cuda-graph", "free-launches"),
            replayed=replayed,
            busy_ns=repetition.removed_ns,
            warning=facts.thresholds.unsure_warning_ceiling
            if not is_loop and facts.unprofiled_host_ns < facts.busy_ns
            else None,
            informs=not is_loop and facts.unprofiled_host_ns < self.ahead_share * facts.busy_ns,
            remedies=remedies,
        )
