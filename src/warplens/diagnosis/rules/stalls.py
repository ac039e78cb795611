"""Rule for pauses in which the host does other work than issuing, with remedies by the names of open ranges."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import ClassVar, Final, Literal, TypeAlias

import numpy as np
import polars as pl

from warplens.analysis.intervals import Intervals, union
from warplens.analysis.prediction import Change
from warplens.analysis.repetition import MIN_REPEATS
from warplens.analysis.trees import NO_RANGE
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.evidence import code_loading, time_inside
from warplens.diagnosis.facts import Facts, range_names, time_by_range
from warplens.diagnosis.findings import GAIN, USUAL, Confidence, Finding, Remedy, Variant, percent
from warplens.diagnosis.rule import (
    GPU_BUSY_SHARE,
    SEEN_IDLE,
    STEPS_ONLY,
    Limit,
    Rule,
    bringing,
    first_of,
    modelled,
    predicted,
    seen_idle,
)
from warplens.profile.schema import Bools, Float64s, Int64s

#: What is done about one activity of the host.
_Remedies: TypeAlias = Remedy | tuple[Remedy, ...]

#: For preparing the input of the next step.
_INPUT: Final = (
    Remedy(
        "Prepare the input while the GPU computes",
        "DataLoader(dataset, num_workers=8, prefetch_factor=4, persistent_workers=True, pin_memory=True)\n"
        "x = x.to('cuda', non_blocking=True)",
        id="prefetched-input",
    ),
    Remedy(
        "Prepare it once, or on the GPU",
        "# store what is the same in each epoch: decoded images, tokens, lists of neighbours\n"
        "# or torch operators on CUDA tensors; for images torchvision.transforms.v2, NVIDIA DALI",
        id="prepared-once",
    ),
)

#: For compilation and autotuning.
_COMPILING: Final = Remedy(
    "Compile before the loop",
    "# warm up with each shape; torch._dynamo.mark_dynamic, or inputs padded to few shapes\n"
    "TORCH_LOGS=recompiles python train.py  # names the reason\n"
    "torch.backends.cudnn.benchmark = False  # if sizes change: each new size is benchmarked again",
    id="compiled-before-loop",
)

#: For what is written now and then, such as checkpoints.
_SAVING: Final = Remedy(
    "Log and save from another thread, and less often",
    "torch.distributed.checkpoint.async_save(state, checkpoint_id=path)  # every N steps, when the last has ended\n"
    "# on several ranks: torch.distributed.init_process_group('cpu:gloo,cuda:nccl')\n"
    "# queue values and write them in another thread",
)

#: Pattern of the name of a range that is open during a pause → remedies.
_ACTIVITIES: Final[dict[str, _Remedies]] = {
    r"dataloader|__next__|(?<![a-z])(?:data|batch|batches|loader|loading|input|inputs|fetch|prefetch|decode_image|"
    r"augment|tokeni[sz]e|tokeni[sz]er|preprocess|preprocessing|collate|dataset|get_batch|load_batch)(?![a-z])": _INPUT,
    r"compiledf|inductor|dynamo|torch-compiled|(?<![a-z])(?:compile|compiling|autotun\w*|jit)(?![a-z])": _COMPILING,
    r"optimi[sz]er|zero_grad|clip_grad|grad_norm|_foreach_|_fused_adam|gradscaler": Remedy(
        "Replace host work per parameter with one kernel",
        "torch.optim.AdamW(model.parameters(), fused=True)\n"
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)\n"
        "# zero_grad(set_to_none=True); torch.compile(optimizer.step)",
        compiles=True,
    ),
    r"(?<![a-z])mpi_|barrier|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|all2all|rendezvous|nccl|c10d": Remedy(
        "Find the rank that is late",
        "warplens ranks RANK0 RANK1\n# move collectives off the host: NCCL instead of MPI or gloo",
    ),
    r"backward|autograd|checkpointfunction": Remedy(
        "Reduce host work in the backward pass",
        "model = torch.compile(model)  # issues the whole pass from one call\n"
        "# fewer hooks and custom autograd functions; checkpoint larger parts, or none",
        compiles=True,
    ),
    r"distributeddataparallel|(?<![a-z])forward(?![a-z])|fullyshardeddataparallel": Remedy(
        "Reduce host work in the forward pass",
        "model = torch.compile(model)  # issues the whole pass from one call\n"
        "# no Python loops over items, no hooks, no checks of values inside the model",
        id="lighter-forward",
        compiles=True,
    ),
    r"(?<![a-z])(?:generate|sample|beam_search|logits\w*|stopping_criteria|prepare_inputs_for_generation|decode|"
    r"decoding|scheduler|execute_context\w*)(?![a-z])": Remedy(
        "Reduce host work between tokens",
        "model.generate(ids, cache_implementation='static')  # compiles the pass for a token, as CUDA graphs\n"
        "# choose tokens and test for the end on the GPU; look at the result every few tokens",
        id="lighter-decoding",
    ),
    r"(?<![a-z])gc(?![a-z])|garbage": Remedy(
        "Run garbage collection outside the steps",
        "gc.collect(); gc.freeze(); gc.disable()  # after set-up\n"
        "gc.collect()  # between epochs, or every thousand steps: cycles keep their memory until then",
    ),
    r"(?<![a-z])(?:log|logs|logging|metric|metrics|wandb|tensorboard|save|saving|checkpoint|print|write|"
    r"evaluate|callback)(?![a-z])": _SAVING,
}

#: For host work of unknown kind.
_UNKNOWN_ACTIVITY: Final = Remedy(
    "Move that host work out of the step",
    "# onto another thread or process, or ahead of time; the profile does not show what it is",
)

#: For pauses outside the ranges that mark the steps.
_BETWEEN_STEPS: Final = Remedy(
    "Shorten what lies between the steps",
    "# input: another thread or process prepares the next one meanwhile; logs, checkpoints: less often\n"
    "# a server may just wait for requests there: record it under load",
)

#: For framework operators that take long on the host for the work that they launch.
_IN_OPERATORS: Final = Remedy(
    "Take the host out of these operators",
    "# a CUDA graph launches their kernels without their host code: torch.cuda.graph, or torch.compile\n"
    "# one call over a sequence or batch instead of many: nn.LSTM on all frames, torch.vmap\n"
    "# move operators on host tensors to the GPU",
    id="no-host-operators",
)

#: For host work on data that are then sent to the GPU, or were just fetched.
_ON_DATA: Final = Remedy(
    "Process these data on the GPU",
    "# send them as they are (images as uint8); convert, normalize and augment them there\n"
    "# look up, count, compare and select there (torch.bincount, argmax), and copy only the result back\n"
    "# where that cannot be: in other processes, as those of a DataLoader",
    id="data-on-gpu",
)

#: For host work on data that come from the GPU and go back there.
_ROUND_TRIP: Final = Remedy(
    "Do this work where its data are",
    "# NumPy or SciPy between two GPU operations: torch has most of it",
    id="work-on-gpu",
)

#: For programs that train, before the code of `_ROUND_TRIP`.
_HOST_OPTIMIZER: Final = (
    "# an optimizer with state or weights on the host: move it to the GPU, with fused=True,\n"
    "# and 8-bit or sharded states if memory is short\n"
)

#: For host work on results that were just read back.
_ON_RESULTS: Final = Remedy(
    "Work on these results on the GPU, or behind the loop",
    "# metrics: torchmetrics, torch.bincount, topk and comparisons on the GPU, and one number read back\n"
    "results.append(y.detach())  # in the step; torch.cat(results).cpu() and scikit-learn once, after the loop\n"
    "# or hand them to another thread or process: y.to('cpu', non_blocking=True), an event, a queue",
    id="results-on-gpu",
)

#: For pauses in which a server may wait for requests.
_UNDER_LOAD: Final = Remedy(
    "Record it under load",
    "# if it serves requests, these pauses may be the time without any, and nothing is slow:\n"
    "# send as many at a time as it is meant to serve, and record some seconds of that",
    "whether the pauses are the time between requests",
)
_REQUESTS: Final = Remedy(
    "Prepare the next request while the GPU computes",
    "# in another thread or process, up to the copy to the GPU; read results back in a third one\n"
    "# requests that wait at the same time: as one batch",
    id="prefetched-requests",
)

_SEE: Final = Remedy(
    "Find out what the host does there",
    "py-spy record --gil -- python train.py\n"
    "nsys profile --trace=cuda,nvtx,osrt --python-sampling=true python train.py\n"
    "# ranges: with torch.cuda.nvtx.range('data'): ...",
    "shows the function that takes the time",
    id="find-host-work",
)


#: Which copies are around most of the time: the host works on fetched data and sends them back, on results that it
#: has read, or on the next input that it sends; or there are none.
_Around: TypeAlias = Literal["round-trip", "results", "input", "nothing"]
#: What the host does in most of its pauses: start-up, a checkpoint every few steps, compilation, waiting for requests,
#: work on these copies, anything between the steps, or unknown.
_Kind: TypeAlias = Literal[
    "start-up", "recurring", "compiling", "requests", "round-trip", "results", "input", "between-steps", "unknown"
]

#: For host work whose place among the copies is known, before the remedies for the work itself.
_BY_PLACE: Final[dict[_Kind, Remedy]] = {
    "requests": _UNDER_LOAD,
    "round-trip": _ROUND_TRIP,
    "results": _ON_RESULTS,
}
#: For host work that no range is named after.
_UNNAMED: Final[dict[_Kind, _Remedies]] = {
    "compiling": _COMPILING,
    "requests": _REQUESTS,
    "input": _INPUT,
    "recurring": _SAVING,
}

#: What the gain of the finding leaves out: its pauses, these and the time of copies that are not pinned, or these and
#: all copies of a round trip.
_Without: TypeAlias = Literal["pauses", "pinned", "round-trip"]


@dataclass(frozen=True, eq=False)
class _Others:
    """Pauses of a host that mostly prepares input, in which it does something else."""

    pauses: Bools  #: which of the window's pauses
    share: float  #: of the time of all pauses of this host


@dataclass(frozen=True)
class _Activity:
    """What the host does in most of its pauses, as far as the profile shows it."""

    kind: _Kind
    around: _Around
    named: _Remedies | None  #: remedies for the activity that range names show
    in_steps: bool  #: whether most of the time is not in long pauses outside any step
    waits: bool  #: whether it may wait for requests


class HostStall(Rule):
    """Idle time during which no launching thread made a CUDA call for far longer than it takes to issue work."""

    id = "host-stall"
    model = "host"
    change = "no-host-stall"
    located = "pauses"
    question = "Is the host busy or asleep for long outside CUDA calls while the GPU runs out of work?"
    limiter = "long pauses of the host between CUDA calls"
    cause = "host code with no CUDA call in flight (input pipeline, Python, garbage collection)"
    raised_when = "it costs 2 %. Informational if a host that never waits would hide it without the profiler"
    claimed = (
        "idle time while no launching thread made a CUDA call for ten times its usual interval, and at least 0.1 ms"
    )
    headline = "Limited by the host: for {share} of the time the GPU had no work while the host did other work"
    title = "The host is busy with other work, and the GPU runs out of work"
    beside = "copies"
    evidence: ClassVar = {
        **SEEN_IDLE,
        **GPU_BUSY_SHARE,
        "stalls_per_step": "pauses of the GPU while the host did other work",
        "longest_stall_ns": "the longest of these pauses",
        "stalls_apart_share": "share of their time in pauses as long as a hundred launches, if that is most of it",
        "stalled_steps_count": "steps with half of their time, if one step has it or a sixteenth of the steps",
        "in_os_calls_share": "share of their time with the launching thread blocked in operating-system calls",
    }
    refutation = (
        "Leave that work out of a test run (the same batch in every step, no logging, gc.disable()): if the step "
        "takes as long as before, that work was not the limit."
    )

    waiting = Limit(0.5, "A host that waits in most steps starts each step with an idle GPU.")
    mostly = Limit(0.5, "A remedy needs an activity of the host that takes most of the time of its pauses.")
    kept_share = Limit(
        0.03,
        "A GPU or a dozen processes need a small part of one thread's time, and the result has to be handed over. In "
        "seven programs timed without these pauses, 0 to 11 % of them stayed, 2 % in the median.",
    )
    handed_share = Limit(
        0.1,
        "Prepared data have to be handed over, and the GPU needs some time for work that it takes over: in eleven "
        "programs timed without such pauses, a tenth of them stayed in the median, whichever set is left out.",
    )
    moved_kept_share = Limit(
        0.01,
        "On the GPU, the work runs at the rate of its memory, a hundred times or more that of a thread (some 10 GB/s).",
    )
    other_share = Limit(0.1, "As much of the pauses for input stays anyway, so a smaller part need not be told apart.")
    large_bytes = Limit(1 << 20, "A smaller copy takes a fraction of a stall, and is not a batch of data.")

    launches_long = Limit(100, "A pause as long as so many launches is other work, not an interrupted launch.")
    least_steps = Limit(3, "Of two alike steps, one has half of the time.")
    few_steps = Limit(1 / 16, "Of the steps with half of the time: twice as many, an eighth of all, then have pauses.")
    least_round_trips = Limit(
        8, "Without steps, a few pauses between a fetch and the next data may lie between two parts of a program."
    )
    results_bytes = Limit(1_024, "Fewer bytes are a loss, a count or a flag, not data that the host works on.")
    uneven_ratio = Limit(
        1.5,
        "Requests come at random: of exponential pauses, those this much longer than the median one have seven tenths "
        "of the time. Where the host works on data between two operations, they had a seventh at most.",
    )
    variants: ClassVar[Mapping[_Kind, Variant]] = {
        "start-up": Variant("The window has long host pauses that belong to no step, such as start-up or compilation"),
        "recurring": Variant(
            "Every few steps the host pauses for as long as several steps, as for a checkpoint",
            "Limited by long pauses every few steps, as for checkpoints: for {share} of the time the GPU got no work "
            "there",
        ),
        "compiling": Variant("The host compiles or loads code in the middle of the steps, and the GPU waits for it"),
        "requests": Variant(
            "Before the next input the GPU has irregular pauses, as in a server without requests",
            "Limited by irregular pauses before the next input: for {share} of the time the GPU had none, as in a "
            "server without requests",
            "Send more requests at a time: if the pauses go away, the program waited for requests, and the host's work "
            "was not the limit.",
        ),
        "round-trip": Variant("Data are copied to the host, processed there, and copied back to the GPU"),
        "results": Variant("The host works on results that it has read back, and the GPU runs out of work"),
        "input": Variant("The host is busy until it sends the next data to the GPU, which runs out of work"),
        "between-steps": Variant(
            "Between the steps the GPU gets no work",
            "Limited by pauses between the steps: for {share} of the time the GPU got no work there",
        ),
    }
    steps_long = Limit(5, "A pause as long as several steps is start-up, compilation, evaluation or a checkpoint.")

    def _apart_from_steps(self, facts: Facts, stalls: pl.DataFrame, claimed_ns: int) -> Literal["once", "recurs", ""]:
        """Whether pauses outside any step claim most of the time, and recur; not if ranges mark the steps.

        They recur if several steps have one, always the same number of steps apart.
        """
        if facts.timeline.steps.source == "range" and facts.window.steps:
            return ""
        length, loads = (stalls["end_ns"] - stalls["start_ns"]).to_numpy(), _loads(facts, stalls)
        _, begins, ends = facts.window.step_edges
        long = length > (self.steps_long * float(np.median(ends - begins)) if len(begins) else np.inf)
        if int(length[loads | long].sum()) <= claimed_ns / 2:
            return ""
        long &= ~loads
        at = np.unique(np.searchsorted(begins, stalls["start_ns"].to_numpy()[long], side="right"))
        recurs = len(at) >= MIN_REPEATS and int(np.ptp(np.diff(at))) == 0
        return "recurs" if recurs and int(length[long].sum()) > claimed_ns / 2 else "once"

    def _apart(self, facts: Facts, spent: Int64s) -> float | None:
        """Share of their time in pauses far longer than a launch takes, if that is most of it; else None."""
        interval = facts.host.launches.interval_median_ns
        length = facts.pause_lengths
        apart = float(spent[length >= self.launches_long * interval].sum()) / max(spent.sum(), 1) if interval else 0.0
        return apart if apart >= self.mostly else None

    def _stalled_steps(self, facts: Facts, spent: Int64s) -> int | None:
        """The fewest steps with half of this time, if one of several has it, or few of many; else None.

        The profile then hardly shows how often that happens.
        """
        steps = facts.window.steps
        if len(steps) < self.least_steps or facts.phase is not None:
            return None
        _, begins, _ = facts.window.step_edges
        step = np.searchsorted(begins, facts.gaps["start_ns"].to_numpy(), side="right")
        of_steps = np.sort(np.bincount(step, spent))[::-1]
        count = int(np.searchsorted(np.cumsum(of_steps), of_steps.sum() / 2)) + 1
        return count if count <= max(1, len(steps) * self.few_steps) else None

    def _is_between_steps(self, facts: Facts, within: pl.Series, spent: pl.Series) -> bool:
        """Whether steps are ranges and most of the pauses' time lies outside all ranges.

        The range of one step has then ended, and that of the next has not begun. The profile does not show whether the
        host works there or waits for a request.
        """
        has_ranges = facts.timeline.steps.source == "range" and facts.phase is None
        return has_ranges and float(spent.filter(within.is_null()).sum()) > self.mostly * float(spent.sum())

    def _is_on_data(self, facts: Facts, claims: Claims) -> bool:
        """Whether most of these pauses end with a large blocking copy to the GPU, or follow one from it.

        The host then prepares data to send, or looks at fetched data. If that work moves to the GPU, or to other
        processes that pin their data, the copies go away as well.
        """
        if "blocking-copy" not in claims.causes or not claims.busy_ns("blocking-copy"):
            return False
        pauses = claims.pauses(self.id)
        copies = facts.copies.filter(pl.col("pageable") & (pl.col("bytes") >= self.large_bytes))
        after_read, before_send = _beside(facts, copies, pauses.at)
        return bool(pauses.ns[after_read | before_send].sum() >= self.mostly * pauses.total)

    def _awaits_requests(self, facts: Facts, stalls: pl.DataFrame, within: pl.Series, spent: Int64s) -> bool:
        """Whether a program that does not train may wait for requests in most of this time.

        It has then read the last results, and the pause ends with the next input. Such pauses are irregular, while host
        work between them takes about as long each time, or longer every few steps. No range is named after the wait.
        """
        rows = np.flatnonzero(spent)
        spent = spent[rows]
        after_read, before_send = _beside(facts, facts.copies, rows)
        between = after_read & before_send
        if facts.trains or int(between.sum()) < self.least_round_trips:
            return False
        long = between & (spent > self.uneven_ratio * np.median(spent[between]))
        least = self.mostly * spent[long].sum()
        return bool(
            spent[long].sum() > self.mostly * spent.sum()
            and spent[long & _are_named(facts, stalls, within)].sum() <= least
            and not self._recur_evenly(facts, stalls, long)
        )

    def _recur_evenly(self, facts: Facts, stalls: pl.DataFrame, long: Bools) -> bool:
        """Whether most of these pauses are the same number of steps apart, as if one worker of several is late."""
        _, begins, _ = facts.window.step_edges
        at = np.searchsorted(begins, stalls["start_ns"].to_numpy()[long]) if len(begins) else np.flatnonzero(long)
        apart = np.diff(at)
        same = max(Counter(apart[apart > 1].tolist()).values(), default=0)  # at random, a third follow the one before
        return same >= MIN_REPEATS and same > self.mostly * len(apart)

    def _around(self, facts: Facts, spent: Int64s) -> _Around:
        """The copies around most of these pauses.

        Between a fetch and a send, the host works on the fetched data; else on the data that it has read or will send.
        Without steps, this is known only if it happens many times.
        """
        copies = facts.copies.filter(pl.col("bytes") >= self.results_bytes)
        rows = np.flatnonzero(spent)
        spent = spent[rows]
        after_read, before_send = _beside(facts, copies, rows)
        repeats = bool(facts.window.steps) or int((after_read & before_send).sum()) >= self.least_round_trips
        least = self.mostly * spent.sum()
        cases: tuple[tuple[bool, _Around], ...] = (
            (spent[after_read & before_send & repeats].sum() > least, "round-trip"),
            (spent[after_read].sum() > least, "results"),
            (spent[before_send].sum() > least, "input"),
        )
        return first_of(*cases, default="nothing")

    def _there_and_back(self, facts: Facts) -> Float64s:
        """1 for copies of data that the host works on, which need not be copied if that work is done on the GPU."""
        work = facts.work
        between = work["label"].cast(pl.String).is_in(["host-to-device", "device-to-host"])
        return (between & (work["bytes"] >= self.results_bytes)).fill_null(value=False).to_numpy().astype(np.float64)

    def _is_hidden(self, facts: Facts, claimed_ns: int) -> bool:
        """Whether GPU work would hide these pauses without the profiler, as the host hardly ever waits.

        GPU work hides a part of them already; the profiler does not make that part longer as it does launches.
        """
        if facts.host.waits >= self.waiting * facts.process_steps:
            return False
        recorded = stays = float(claimed_ns)
        if (pace := facts.pace) is not None:
            left = float(pace.usual.stall_ns.sum()) * facts.process_steps / pace.steps
            recorded, stays = max(left / pace.stalls_left, recorded), max(left, stays)
        return facts.unprofiled_share * max(facts.host_needed_ns - recorded, 0) + stays < facts.busy_ns

    def _is_in_operators(self, facts: Facts, within: pl.Series, spent: pl.Series, apart: float | None) -> bool:
        """Whether the host is inside operators for most of the time of its pauses, and the pauses are not very long.

        In an operator that takes as long as a hundred launches, the host may do anything, such as collecting garbage.
        """
        times = time_by_range(facts, within, spent)
        inside = sum(time for name, time in times.items() if _is_plain_operator(name))
        return apart is None and bool(times) and inside >= self.mostly * float(spent.sum())

    def _named(self, facts: Facts, within: pl.Series, spent: pl.Series) -> _Remedies | None:
        """Remedies for the activity that range names show in most of the time of these pauses; None for none."""
        time_of: Counter[_Remedies] = Counter()
        for name, time in time_by_range(facts, within, spent).items():
            if (activity := _activity_of(name)) is not None:
                time_of[activity] += time
        activity, time = max(time_of.items(), key=itemgetter(1), default=(None, 0))
        return activity if time >= self.mostly * float(spent.sum()) else None

    def _other_pauses(self, facts: Facts, within: pl.Series, spent: Int64s) -> _Others | None:
        """The pauses that are not for the next input; None if they take little time.

        A pause is for input if it ends with a copy to the GPU, or a range that is open in it is named after input.
        """
        rows = np.flatnonzero(spent)
        _, for_input = _beside(facts, facts.copies.filter(pl.col("bytes") >= self.results_bytes), rows)
        names = facts.timeline.trace.ranges["name"].gather(within).cast(pl.String)
        of_input = [name for name in names.drop_nulls().unique() if _activity_of(name) is _INPUT]
        for_input |= names.is_in(of_input).fill_null(value=False).to_numpy()
        others = np.zeros(len(spent), dtype=np.bool_)
        others[rows[~for_input]] = True
        share = float(spent[others].sum() / spent.sum())
        return _Others(others, share) if share > self.other_share else None

    def _with_gains(
        self, facts: Facts, remedies: _Remedies, without: _Without, others: _Others | None
    ) -> tuple[Remedy, ...]:
        """These remedies for the host's activity, with their gains.

        Remedies that leave out the pauses alone have their own gain. Input that is prepared by other processes is
        pinned as well. The `others` of these pauses stay.
        """
        alone = None
        if without != "pauses":
            alone = facts.replayed(
                "no-host-stall", residual_share=self.kept_share, staying=others.pauses if others else None
            )
        gain = modelled(facts, "no-host-stall")
        if others is not None:
            gain = f"{GAIN}; the other pauses, {percent(others.share)} of their time, stay"

        def with_gain(remedy: Remedy) -> Remedy:
            if without == "pinned" and remedy in _INPUT:
                return remedy
            changed = replace(remedy, expected=remedy.expected.format(gain=gain))
            return changed if without == "pauses" else bringing(changed, alone)

        return tuple(map(with_gain, remedies if isinstance(remedies, tuple) else (remedies,)))

    def _unnamed(
        self, facts: Facts, kind: _Kind, within: pl.Series, spent: pl.Series, apart: float | None
    ) -> _Remedies:
        """Remedies for host work of this kind that no range is named after."""
        if kind in _UNNAMED:
            return _UNNAMED[kind]
        if self._is_between_steps(facts, within, spent):
            return _BETWEEN_STEPS
        return _IN_OPERATORS if self._is_in_operators(facts, within, spent, apart) else _UNKNOWN_ACTIVITY

    def _activity(self, facts: Facts, stalls: pl.DataFrame, within: pl.Series, spent: Int64s) -> _Activity:
        """What the host does in most of these pauses.

        Args:
            stalls, within: the claimed pauses, and the row of the range that is open in each.
            spent: the claimed time of each pause of the window.
        """
        spent_ns = pl.Series(spent[spent > 0])
        claimed = int(spent.sum())
        outside = self._apart_from_steps(facts, stalls, claimed)
        loads = bool(spent_ns.filter(pl.Series(_loads(facts, stalls))).sum() > claimed / 2)
        waits = not outside and not loads and self._awaits_requests(facts, stalls, within, spent)
        around = "nothing" if outside else self._around(facts, spent)
        named = self._named(facts, within, spent_ns)
        kind: _Kind = "unknown"
        if outside == "once":
            kind = "start-up"
        elif loads or (named is _COMPILING and not outside):
            kind = "compiling"
        elif outside == "recurs":
            kind = "recurring"
        elif waits:
            kind = "requests"
        elif around != "nothing":
            kind = around
        elif named is None and self._is_between_steps(facts, within, spent_ns):
            kind = "between-steps"
        return _Activity(kind, around, named, in_steps=not outside, waits=waits)

    def _mended(
        self, facts: Facts, claims: Claims, activity: _Activity, *, on_data: bool
    ) -> tuple[tuple[Change, ...], _Without, Float64s | None, int]:
        """What a replay without these pauses changes: schedule, what is gone, shares of work, time of that work."""
        if activity.around == "round-trip" and not activity.waits:
            avoidable = self._there_and_back(facts)
            return ("no-host-stall",), "round-trip", avoidable, int(facts.program.own_ns @ avoidable)
        copies = claims.busy_ns("blocking-copy") if on_data else 0
        if 0 < copies <= claims.idle_ns(self.id):
            return ("no-host-stall", "overlapped-copies"), "pinned", None, copies
        # Larger copies are the cause, which `blocking-copy` reports, and the pauses only go with them.
        return ("no-host-stall",), "pauses", None, 0

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        claimed = claims.idle_ns(self.id)
        if not claimed:
            return None
        spent = claims.pauses(self.id).whole()
        stalls, stalled_ns = facts.gaps.filter(pl.Series(spent > 0)), pl.Series(spent[spent > 0])
        within = _open_ranges(facts, stalls, np.flatnonzero(spent > 0))
        activity = self._activity(facts, stalls, within, spent)
        apart, few = self._apart(facts, spent), self._stalled_steps(facts, spent)
        main = activity.named or self._unnamed(facts, activity.kind, within, stalled_ns, apart)

        on_data = activity.in_steps and not activity.waits and self._is_on_data(facts, claims)
        changes, without, avoidable, copies = self._mended(facts, claims, activity, on_data=on_data)
        staying = self._other_pauses(facts, within, spent) if main is _INPUT else None
        kept = first_of(
            (main is _COMPILING and activity.in_steps, self.kept_share),
            (avoidable is not None, self.moved_kept_share),
            (activity.around == "input" and staying is None, self.handed_share),
            default=self.kept_share,
        )
        by_place = _by_place(facts, activity.kind, on_data=on_data)
        first, *further = self._with_gains(facts, main, without, staying)
        # Input that is prepared ahead need not be prepared faster.
        ordered = (first, by_place) if main is _INPUT else (by_place, first)
        starting = activity.kind == "start-up"
        found = self.raised(
            facts,
            claimed,
            variant=self.variants.get(activity.kind, USUAL),
            confidence="low" if starting or activity.waits else _confidence(facts, few),
            evidence={
                **seen_idle(facts, claims, self.id),
                "stalls_per_step": stalls.height / facts.process_steps,
                "longest_stall_ns": int(spent.max()),
                "stalls_apart_share": apart,
                "stalled_steps_count": few,
                "in_os_calls_share": _in_os_calls(facts, stalls),
            },
            where=range_names(facts, within, stalled_ns),
            remedies=(STEPS_ONLY if starting else None, *ordered, *further, _SEE),
            issuing_ns=claims.issuing_ns.get(self.id, 0),
            informs=starting or self._is_hidden(facts, claimed),
            residual_share=kept,
            replayed=facts.replayed(
                *changes,
                time=avoidable,
                calls=avoidable,
                residual_share=kept,
                staying=staying.pauses if staying else None,
            ),
            busy_ns=copies,
            # A host that does not stop can be ahead of the GPU and hide all other pauses as well.
            bound_ns=facts.own_idle_ns + copies,
            at_least=predicted(facts, "no-host-stall"),
            # Unknown host work may take many times as long in another run, as garbage collection does.
            bound_known=on_data or activity.named is not None,
        )
        if activity.waits and found is not None and found.severity == "critical":
            return replace(found, severity="warning")
        return found


def _by_place(facts: Facts, kind: _Kind, *, on_data: bool) -> Remedy | None:
    """The remedy that goes by the place of the host's work among the copies; None if that does not show."""
    if kind == "compiling":
        return None
    if kind == "round-trip" and facts.trains:
        return replace(_ROUND_TRIP, how=_HOST_OPTIMIZER + _ROUND_TRIP.how)
    return _BY_PLACE.get(kind, _ON_DATA if on_data else None)


def _confidence(facts: Facts, few: int | None) -> Confidence:
    """How sure it is that these pauses recur; `few` steps with half of their time hardly show it."""
    if facts.sure and few is None:
        return "high"
    return "medium" if facts.window.steps else "low"


def _beside(facts: Facts, copies: pl.DataFrame, pauses: Int64s | slice) -> tuple[Bools, Bools]:
    """Which of these pauses follow one of these copies to the host, and which end with one to the GPU."""
    read = copies.filter(pl.col("label") == "device-to-host")["end_ns"].to_numpy()
    sent = copies.filter(pl.col("label") == "host-to-device")["start_ns"].to_numpy()
    if len(sent) and sent.min() == facts.window.start_ns:
        sent = np.r_[sent, facts.window.end_ns]  # steps begin with such a copy, and so does the next one
    begins, ends = (facts.gaps[name].to_numpy()[pauses] for name in ("start_ns", "end_ns"))
    return np.isin(begins, read), np.isin(ends, sent)


def _loads(facts: Facts, stalls: pl.DataFrame) -> Bools:
    """Whether the host loads code in each of these pauses."""
    return time_inside(code_loading(facts), stalls) > 0


def _are_named(facts: Facts, stalls: pl.DataFrame, within: pl.Series) -> Bools:
    """Whether a range that is no step encloses each pause, and little else: the host does what it is named after."""
    ranges = facts.timeline.trace.ranges
    if not ranges.height:
        return np.zeros(stalls.height, dtype=np.bool_)
    begins, ends = (ranges[name].gather(within.fill_null(0)).to_numpy() for name in ("start_ns", "end_ns"))
    _, step_begins, _ = facts.window.step_edges
    fills = (stalls["end_ns"] - stalls["start_ns"]).to_numpy() > HostStall.mostly * (ends - begins)
    return np.asarray(within.is_not_null().to_numpy() & fills & ~np.isin(begins, step_begins))


def _activity_of(name: str) -> _Remedies | None:
    """Remedies for the activity that a range is named after; None if its name does not show it."""
    activities = (found for pattern, found in _ACTIVITIES.items() if re.search(pattern, name, re.I))
    return None if _is_plain_operator(name) else next(activities, None)


def _is_plain_operator(name: str) -> bool:
    """Whether a range is an operator, whose name does not show the host's activity; those of optimizers do show it."""
    return name.startswith("aten::") and not name.startswith(("aten::_foreach_", "aten::_fused_"))


def _in_os_calls(facts: Facts, stalls: pl.DataFrame) -> float | None:
    """Share of the stalls with the launching thread blocked in the operating system; None if not recorded."""
    thread = facts.host.launches.thread
    if "os_calls" not in facts.timeline.trace.capture.recorded or not stalls.height or thread is None:
        return None
    calls = facts.timeline.trace.os_calls.filter((pl.col("process") == thread[0]) & (pl.col("thread") == thread[1]))
    inside = time_inside(union(Intervals.of(calls)), stalls)
    return float(inside.sum() / max(1, int((stalls["end_ns"] - stalls["start_ns"]).sum())))


def _open_ranges(facts: Facts, stalls: pl.DataFrame, pauses: Int64s) -> pl.Series:
    """Row of the innermost range that is open in the middle of each stall; null for none.

    It is that of the thread that launches most. If that has none of its own, a range of the thread that ends the stall
    with a launch comes before one that lends it a range, unless it is a plain operator.
    """
    middle, busiest = (stalls["start_ns"] + stalls["end_ns"]).to_numpy() // 2, facts.host.launches.thread
    rows = np.full(len(middle), NO_RANGE, dtype=np.int64)
    if busiest is not None and len(middle):
        forest, ended_by = facts.timeline.forest, facts.program.gap_next[pauses]
        process, thread = (np.full(len(middle), part, dtype=np.int64) for part in busiest)
        rows, inferred = forest.attribute(process, thread, middle)
        work = facts.timeline.work.select("process", "thread")[facts.rows[np.maximum(ended_by, 0)]]
        process, thread = (work[name].fill_null(-1).to_numpy().astype(np.int64) for name in work.columns)
        own = forest.open_on(process, thread, middle)
        at = np.flatnonzero((inferred | (rows == NO_RANGE)) & (own != NO_RANGE) & (ended_by >= 0))
        names = facts.timeline.trace.ranges["name"].gather(own[at]).cast(pl.String)
        at = at[[not _is_plain_operator(name) for name in names]]
        rows[at] = own[at]
    return pl.Series("row", rows).to_frame().select(pl.when(pl.col("row") >= 0).then("row")).to_series()
