"""Rule for a GPU that waits for launches, with loops and recurrent networks that are launched in turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import polars as pl

from warplens.analysis.frames import number
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts, range_names
from warplens.diagnosis.findings import GAIN, PASSES, Confidence, Finding, Remedy
from warplens.diagnosis.pace import Gain
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
from warplens.diagnosis.structure import Passes, backward_work, loops_of, turns_of_step
from warplens.patterns import lazy_pattern
from warplens.profile.schema import Float64s, name_categories

#: For idle time before launches of CUDA graphs.
_FROM_GRAPHS: Final = (
    Remedy(
        "Launch the next graph before this one has finished",
        "# g.replay() returns at once: do not wait between replays, read results one replay later",
        "the pauses between replays go away",
    ),
    Remedy(
        "Put more into one graph",
        "# capture several steps, or the whole step where parts are launched one by one",
        "fewer launches for the same work",
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
)


#: For recurrent networks that are launched one time step at a time.
_ONE_RECURRENCE: Final = Remedy(
    "Run the whole recurrence in one call",
    "y, state = nn.LSTM(width, width, layers, batch_first=True)(x)  # instead of nn.LSTMCell in a loop\n"
    "# torch.backends.cudnn.enabled = True, inputs and weights in one format, nothing between the time steps\n"
    "# if another network runs between time steps: a CUDA graph of the loop",
    f"{GAIN}: cuDNN issues the time steps without the framework in between, and fuses all but the products",
)

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
#: Steps of more kernels are not searched for loops.
_MOST_KERNELS: Final = 200_000


def _loops_over_networks(facts: Facts) -> bool:
    """Whether most launches of the first step are loops of many equal turns with several products and no norms.

    A turn with one product may be a layer of a deep network, and one with norms a block of it. The profile does not
    show whether a turn needs the turn before.
    """
    program = facts.program
    if facts.phase is not None or not facts.window.steps:
        return False
    rows = next(iter(program.by_step()), None)
    if rows is None or len(rows) > _MOST_KERNELS:
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
class _Recurrence:
    """A recurrent network that is launched one time step after another."""

    time: Float64s  #: share of the time of each piece of work that one call for all time steps saves
    calls: Float64s  #: share of the host's time for issuing each piece that goes away
    cells: float  #: cells per step


def _recurrence(facts: Facts) -> _Recurrence | None:
    """The recurrence of a step; None if no cells are launched one by one.

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
    passes = inside & program.passes & ~cells
    calls = np.where(inside, _CELLS_SAVED_SHARE, 0.0)
    return _Recurrence(passes.astype(np.float64), calls, float(cells.sum()) / facts.steps)


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
        "launches_per_turn_factor": "launches per turn",
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

    looped_title: ClassVar = "A loop launches the same few small kernels in every turn, and the GPU waits for them"

    cells_title: ClassVar = "A recurrent network is launched one time step after another, and the GPU waits for it"

    ahead_share = Limit(0.8, "A host that needs at most 80 % of the GPU's time is ahead of it without the profiler.")

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        claimed = claims.idle_ns(self.id)
        launches = facts.host.launches
        is_whole = facts.phase is None
        passes = passes_apart(facts, claims)
        graph = facts.replayed("cuda-graph") if claimed else None
        many_turns = _many_turns(facts) if claimed else None
        if many_turns is not None and (graph is None or graph.expected < many_turns.expected):
            graph = many_turns
        merged = self._merged(facts, passes) if claimed and passes.count > 1 else None
        merged_less = None
        if merged is not None and graph is not None and merged.expected < graph.expected:
            merged, merged_less = None, merged
        turns = turns_of_step(facts) if claimed and merged is None else None
        at_once = facts.replayed(time=turns.share, calls=turns.share, elsewhere=True) if turns is not None else None
        cells = _recurrence(facts) if claimed and merged is None and turns is None else None
        one_call = facts.replayed(time=cells.time, calls=cells.calls, elsewhere=True) if cells is not None else None
        if one_call is None or (graph is not None and one_call.expected < graph.expected):
            cells = one_call = None
        from_graphs = facts.graphed or facts.idle("graph-launch") > facts.idle("launch")
        # Turns that need the result of the last turn cannot become one, but a graph can replay them.
        is_sequential = turns is not None and turns.searches and graph is not None and not from_graphs
        replayed = merged or (None if is_sequential else at_once) or one_call or graph
        at_a_time = (
            as_one_batch(passes) if merged is not None else None,
            _ALL_TURNS if turns is not None and not is_sequential else None,
        )
        removed_ns = 0 if cells is None else int(cells.time @ facts.program.own_ns)
        if merged is not None:
            removed_ns = passes.removed_ns(facts, self._saved(facts, passes))
        behind = _behind_backward(facts) if claimed else None
        graphed = (
            _MANY_TURNS
            if many_turns is not None and graph is many_turns
            else Remedy(
                "Replay the step from a CUDA graph",
                _captured_training(facts) if facts.trains else _CAPTURED,
                modelled(facts, "cuda-graph") + self._obstacles(facts),
            )
        )
        larger = Remedy(
            "Give each launch more work",
            "DataLoader(dataset, batch_size=larger)  # until kernels run longer than the launch interval"
            if facts.trains
            else "# a larger batch: answer several requests, or chunks of the input, in one pass",
            "the same step time for more samples, until the GPU is busy",
        )
        # If the host sets the pace, most kernels start at once on a waiting GPU.
        prompt = launches.prompt_share if is_whole else None
        sure = facts.sure and (prompt is None or prompt >= 0.5)
        confidence: Confidence = "high" if sure else "medium"
        is_kernel = pl.col("kind") == "kernel"
        durations = facts.work.select((pl.col("end_ns") - pl.col("start_ns")).filter(is_kernel)).to_series()
        return self.raised(
            facts,
            claimed,
            title=self.looped_title if turns is not None else self.cells_title if cells is not None else "",
            confidence=confidence if len(facts.window.steps) else "low",
            evidence={
                "idle_ns": claimed,
                "idle_share": claimed / facts.wall_ns,
                "launches_per_step": durations.len() / facts.process_steps,
                "behind_backward_per_step": behind,
                "passes_per_step": passes.count if merged is not None else None,
                "cells_per_step": cells.cells if cells is not None else None,
                "turns_per_step": turns.count if turns is not None else None,
                "launches_per_turn_factor": turns.launches if turns is not None else None,
                "launch_interval_median_ns": launches.interval_median_ns if is_whole else None,
                "launch_call_median_ns": launches.api_median_ns if is_whole else None,
                "kernel_median_ns": number(durations.median()),
                "kernels_shorter_than_interval_share": launches.shorter_than_interval_share if is_whole else None,
                "launched_onto_idle_gpu_share": prompt,
                "host_needed_ns_per_step": facts.host_needed_ns / facts.process_steps,
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
            busy_ns=removed_ns,
            # Without the profiler, the host may be ahead of the GPU.
            warning=facts.thresholds.unsure_warning_ceiling
            if turns is None and facts.unprofiled_host_ns < facts.busy_ns
            else None,
            # A loop of tiny kernels is worth fixing however fast a launch is.
            informs=turns is None and facts.unprofiled_host_ns < self.ahead_share * facts.busy_ns,
            remedies=(*at_a_time, *_FROM_GRAPHS)
            if from_graphs
            else (
                *at_a_time,
                _ONE_RECURRENCE if cells is not None else None,
                graphed if replayed is graph else bringing(graphed, graph),
                bringing(_ALL_TURNS, at_once) if is_sequential else None,
                bringing(as_one_batch(passes), merged_less) if merged_less is not None else None,
                Remedy(
                    "Launch fewer kernels",
                    "model = torch.compile(model)  # fuses elementwise work\n"
                    + (_UPDATED if behind is not None else "")
                    + (_STACKED if turns is None and merged is None and _loops_over_networks(facts) else "")
                    + "# F.scaled_dot_product_attention for written-out attention\n"
                    f"# a fused optimizer for its kernels: {fused_call(facts)}",
                    "in proportion to the launches saved",
                ),
                # If launches cost little, more work in each brings little.
                more_at_a_time(facts, larger)
                if replayed is not None and replayed.expected >= facts.thresholds.warning_ceiling
                else larger,
            ),
        )

    @staticmethod
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

    def _merged(self, facts: Facts, passes: Passes) -> Gain | None:
        """Gain of running these passes of a step as one: one set of launches, kernels as long as they fill the GPU.

        The profile does not show how much of the host's other work is per pass and how much per item: half of it is
        expected to go away.
        """
        return facts.replayed(time=self._saved(facts, passes), calls=passes.calls(facts), stalls=0.5)

    @staticmethod
    def _saved(facts: Facts, passes: Passes) -> Float64s:
        return passes.saved_share(facts, filled_share(facts))
