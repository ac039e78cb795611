"""Rules for ranks that wait for each other: late ranks, stages of a pipeline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import ClassVar, Final

import numpy as np
import polars as pl

from warplens.analysis.ranks.balance import delays, held_up
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.findings import GAIN, USUAL, Confidence, Finding, Remedy, Severity, Variant, ceiling
from warplens.diagnosis.rule import Limit, Rule, bound_of, fill_gains, remembered
from warplens.diagnosis.run import MOST_LISTED, RankFacts, Run, listed, run_of
from warplens.diagnosis.thresholds import Thresholds
from warplens.profile.schema import Float64s


class RanksRule(Rule):
    """A cause that shows between ranks: in one profile of several ranks, or in the profiles of one run."""

    precedence = "certain"

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        run = run_of(facts)
        return None if run is None else self.across(run, facts.thresholds)

    def across(self, run: Run, limits: Thresholds) -> Finding | None:
        """The finding, if the run has it."""
        raise NotImplementedError

    def costing(
        self,
        limits: Thresholds,
        gains: Sequence[float],
        *,
        sure: bool,
        bound: float,
        title: str = "",
        variant: Variant = USUAL,
        confidence: Confidence,
        evidence: Mapping[str, int | float | None],
        where: tuple[str, ...],
        remedies: tuple[Remedy, ...],
        warning: float | None = None,
    ) -> Finding:
        """The finding, graded by its gain.

        Args:
            gains: the expected gain and the ends of its interval, in any order.
            sure: whether the window has several steps.
            title, variant: as in `Rule.raised`.
            confidence, where, remedies: as in `Finding`.
            evidence: as in `Finding`; None for numbers that were not recorded, which are left out.
            warning: least gain of a warning, if larger than `warning_ceiling`.
        """
        low, expected, high = sorted(max(gain, 1.0) for gain in gains)
        bound = max(bound, high)
        severity: Severity = "info"
        if expected >= (warning or limits.warning_ceiling):
            severity = "critical" if expected >= limits.critical_ceiling and sure else "warning"
        told = fill_gains(remedies, expected, (low, high), bound)
        return self.found(title, severity, confidence, (expected, (low, high), bound), evidence, where, told, variant)


#: Host paces over which a gain is averaged: 0 is the least time without the profiler, 1 the recorded time.
PACES: Final = np.linspace(0.0, 1.0, 11)


def gains_of(
    ranks: Mapping[int, RankFacts], saved_ns: Mapping[int, float], residual_share: float = 0.0
) -> tuple[float, float, float]:
    """Expected gain of these ranks, and the ends of its interval; the median over ranks.

    Waiting during which the host issues the next work costs nothing, and the hosts' time without the profiler is the
    least certain quantity. The expected gain is the mean over this time, from its least value to the recorded one.
    """
    left = 1 - residual_share

    def gain_at(pace: float, part: float) -> float:
        return median(ranks[rank].gain(ranks[rank].paced(pace), part * saved) for rank, saved in saved_ns.items())

    expected = float(np.mean([gain_at(pace, left) for pace in PACES]))
    return gain_at(1.0, 0.8 * left), expected, gain_at(0.0, min(1.2 * left, 1.0))


# --- Stages of a pipeline that wait for each other -------------------------------------------------------------------


class PipelineBubble(RanksRule):
    """Ranks that send to and receive from each other and wait in turn, in every step for the same time."""

    id = "pipeline-bubble"
    question = "Do the stages of a pipeline wait for each other while it fills and drains?"
    limiter = "stages of a pipeline that wait while it fills and drains"
    cause = "stages of a pipeline waiting: too few micro-batches for its depth"
    raised_when = (
        "every rank waits in sends and receives for 5 % of the time or more, in long waits that are equally long "
        "in each step, and the ranks wait at different times of the step"
    )
    claimed = "sends and receives with nothing else running"
    headline = "Limited by the pipeline bubble: for {share} of the time a stage waits for another"
    evidence: ClassVar = {
        "stages_count": "ranks that send and receive",
        "micro_batches_per_step": "half of the transfers of the rank with the fewest, an end of the pipeline",
        "bubble_ns_per_step": "time in sends and receives beyond the transfer itself, with nothing computed; mean "
        "over the ranks",
        "bubble_share": "the same, of the window",
        "most_bubble_rank_share": "the same on the rank with the most",
        "reference_bubble_share": "(p − 1) / (m + p − 1) of even stages, p stages and m micro-batches (GPipe)",
        "most_to_mean_compute_factor": "compute time of the longest stage over the mean",
    }
    refutation = (
        "Run the step with twice as many micro-batches of half the size: if it takes as long as before, the stages "
        "did not wait for the pipeline to fill."
    )
    least_share = Limit(0.05, "Less than this is the transfer itself and the jitter between partners.")
    longest_share = Limit(0.4, "A pipeline fills and drains once in a step; rings wait in every exchange alike.")
    even_share = Limit(
        0.25, "In a pipeline every stage waits; a stage that hardly waits is late, and the others wait for it."
    )
    regular_share = Limit(
        0.25, "Deviation of the waiting per step over its mean: a schedule costs the same in every step."
    )
    apart_share = Limit(
        0.1, "Share of the step between the longest waits of two stages: one fills while the other drains."
    )
    kept_share = Limit(0.5, "Twice the micro-batches halve the time in which a pipeline fills and drains.")

    def _waits(self, run: Run) -> dict[int, pl.DataFrame]:
        """By rank: `step`, `waited_ns`, `longest_ns`, `at` (start of the longest, of the step), `transfers`."""
        waits = {}
        for rank in run.ranks:
            summary = run.summary(rank)
            steps = summary.steps.filter("in_window").select(
                "step", "end_ns", begin="start_ns", length=pl.col("end_ns") - pl.col("start_ns")
            )
            # A step mostly in the window counts with its first transfer, of which the window may cut a part.
            rows = summary.collectives.filter(pl.col("kind") == "send_recv").rename({"end_ns": "ended_ns"})
            if steps.height < 2 or not rows.height:
                return {}
            floor = (rows["ended_ns"] - rows["start_ns"]).quantile(0.05) or 0.0
            waited = (pl.col("exposed_ns") - floor).clip(0.0)
            waits[rank] = (
                rows.sort("start_ns")
                .join_asof(steps.sort("begin"), left_on="start_ns", right_on="begin")
                .filter(pl.col("start_ns") < pl.col("end_ns"))
                .with_columns(waited.alias("waited"))
                .group_by("step")
                .agg(
                    pl.col("waited").sum().alias("waited_ns"),
                    pl.col("waited").max().alias("longest_ns"),
                    ((pl.col("start_ns") - pl.col("begin")) / pl.col("length")).sort_by("waited").last().alias("at"),
                    pl.len().alias("transfers"),
                )
                .sort("step")
            )
        return waits

    def _pattern(self, run: Run) -> dict[int, pl.DataFrame]:
        """`_waits`, if they have the pattern of a pipeline; empty if not."""
        waits = self._waits(run) if len(run.ranks) > 1 else {}
        if not waits:
            return {}
        totals = {rank: float(rows["waited_ns"].sum()) for rank, rows in waits.items()}
        # The window may have one more step of some ranks, so that steps of all ranks are preferred.
        steps = pl.concat(waits.values()).group_by("step").agg(pl.col("waited_ns").sum(), pl.len().alias("ranks"))
        common = steps.filter(pl.col("ranks") == len(waits))
        waited = (common if common.height > 1 else steps)["waited_ns"].to_numpy()
        shares = run.shares(totals)
        places = [float(rows["at"].median() or 0.0) for rows in waits.values()]  # type: ignore[arg-type]
        longest = [float(rows["longest_ns"].sum()) / max(totals[rank], 1.0) for rank, rows in waits.items()]
        fits = (
            min(shares.values()) >= self.least_share
            and min(shares.values()) >= self.even_share * max(shares.values())
            and median(longest) >= self.longest_share
            and float(waited.std()) <= self.regular_share * float(waited.mean())
            and all(rows["transfers"].n_unique() == 1 for rows in waits.values())
            and max(places) - min(places) >= self.apart_share
        )
        return waits if fits else {}

    def claim(self, facts: Facts) -> Float64s | None:
        """Sends and receives."""
        run = run_of(facts)
        if run is None or not self._pattern(run):
            return None
        sends = pl.concat(
            [summary.collectives.filter(pl.col("kind") == "send_recv") for summary in run.result.summaries]
        )
        claimed = (facts.work["label"] == "communication") & facts.work["start_ns"].is_in(sends["start_ns"].implode())
        return np.where(claimed.to_numpy(), 1.0, 0.0)

    def across(self, run: Run, limits: Thresholds) -> Finding | None:
        """The finding, if the run has it."""
        waits = self._pattern(run)
        if not waits:
            return None
        waited = {rank: float(rows["waited_ns"].sum()) for rank, rows in waits.items()}
        shares = run.shares(waited).values()
        stages = max(len(waits), run.result.placing.world_size or 0)
        micro = max(1, round(min(rows["transfers"][0] for rows in waits.values()) / 2))
        batches = "1 micro-batch" if micro == 1 else f"{micro} micro-batches"
        reference = (stages - 1) / (micro + stages - 1)
        low, expected, high = (
            median(ceiling(run.ranks[rank].wall_ns, part * spent) for rank, spent in waited.items())
            for part in (0.2, self.kept_share, 0.75)
        )
        uneven = run.result.balance.imbalance
        return self.costing(
            limits,
            (low, expected, high),
            sure=run.sure,
            bound=max(bound_of(run.ranks[rank], spent) for rank, spent in waited.items()),
            title=f"Stages of a pipeline wait for each other: {batches} for {stages} stages",
            confidence="medium" if run.sure else "low",
            evidence={
                "stages_count": stages,
                "micro_batches_per_step": micro,
                "bubble_ns_per_step": sum(waited.values()) / len(waited) / run.steps,
                "bubble_share": sum(shares) / len(shares),
                "most_bubble_rank_share": max(shares),
                "reference_bubble_share": reference,
                "most_to_mean_compute_factor": uneven,
            },
            where=tuple(f"rank {rank}" for rank in sorted(waited, key=lambda rank: -waited[rank])[:3]),
            remedies=(
                Remedy(
                    "Split the batch into more micro-batches",
                    f"torch.distributed.pipelining.ScheduleGPipe(stage, n_microbatches={2 * micro})  # twice as many\n"
                    "# Megatron: a smaller --micro-batch-size",
                    f"{GAIN}: the bubble halves while the micro-batches still fill the GPU",
                ),
                Remedy(
                    "Give each rank several smaller stages, or split the backward pass",
                    "# torch.distributed.pipelining: ScheduleInterleaved1F1B or ScheduleZBVZeroBubble\n"
                    "# Megatron: --num-layers-per-virtual-pipeline-stage",
                    "v stages per rank make the bubble v times shorter, for v times the transfers",
                ),
                Remedy(
                    "Balance the stages",
                    "# move layers from the stage that computes longest; embedding and output layer count as layers",
                    "every stage waits for the slowest one",
                ),
            ),
        )


def waited_share(facts: Facts, run: Run, members: pl.DataFrame, waited_ns: pl.Expr) -> Float64s:
    """Share of each collective's time of its own that is waiting; 0 for other work.

    Args:
        run: the ranks of this window.
        members: rows of `balance.MEMBERS`; ranks of one file share its clock, so that start times identify kernels.
        waited_ns: the waiting of each row.
    """
    device = pl.col("rank").replace_strict(
        {rank: run.summary(rank).device for rank in run.ranks}, return_dtype=pl.Int32
    )
    waited = members.group_by("start_ns", device.alias("device")).agg(waited_ns.sum().alias("waited_ns"))
    rows = np.flatnonzero(facts.program.having("label", "communication"))
    joined = facts.work.select("start_ns", "device")[rows].join(
        waited, on=["start_ns", "device"], how="left", maintain_order="left"
    )
    waited_of_rows = joined["waited_ns"].fill_null(0).to_numpy()
    share = np.zeros(facts.work.height)
    share[rows] = np.minimum(waited_of_rows / np.maximum(facts.program.own_ns[rows], 1), 1.0)
    return share


# --- One rank that is late -------------------------------------------------------------------------------------------


#: Cause of a late rank → its text in the title.
_CAUSES: Final = {
    "more-work": "its GPU has {excess} more work per step",
    "larger-part": "its part of the data takes {excess} longer per step",
    "slower-kernels": "the same kernels take {excess} longer per step",
    "host": "its host spends {excess} more per step on other work",
    "launch": "its host takes {excess} longer per step to issue the same work",
    "synchronization": "it waits {excess} longer per step for its own GPU",
    "allocation": "it spends {excess} more per step on allocating and freeing memory",
    "copies": "it spends {excess} more per step on copies",
    "unknown": "its profile does not show what takes longer",
}

#: Cause of a late rank → what to do.
_ADVICE: Final[dict[str, Remedy | tuple[Remedy, ...]]] = {
    "larger-part": Remedy(
        "Give every rank the same work",
        "# equally many tokens, not only samples: batch by total length, sort by length before dealing batches out\n"
        "# documents packed into one row: attention grows with the square of each one's length",
        f"{GAIN}: all ranks take the mean time",
    ),
    "more-work": Remedy(
        "Give every rank the same work",
        "# equally many tokens, not only samples: batch by total length\n"
        "# evaluation, logging, checkpoints, extra losses: on all ranks, or outside the step\n"
        "# experts and embedding tables distributed by their load",
    ),
    "slower-kernels": (
        Remedy(
            "Find out what slows that GPU down",
            "nvidia-smi -q -d PERFORMANCE,CLOCK,POWER,TEMPERATURE  # on its host, during the run\n"
            "nvidia-smi --query-compute-apps=pid,used_memory --format=csv  # other programs on it",
        ),
        Remedy("Replace that GPU", "# run on other GPUs of the host, or drain the node, and compare"),
    ),
    "host": Remedy(
        "Leave its input and its logging to other processes",
        "DataLoader(dataset, num_workers=8, pin_memory=True)  # input sharded evenly over the ranks\n"
        "# logs and checkpoints of this rank: another thread, torch.distributed.checkpoint.async_save, which needs\n"
        "# torch.distributed.init_process_group('cpu:gloo,cuda:nccl')",
    ),
    "launch": (
        Remedy(
            "Pin its process to its own cores",
            "numactl --cpunodebind=N --membind=N python train.py  # beside its GPU: nvidia-smi topo -m\n"
            "# OMP_NUM_THREADS, no other program on these cores, the CPU's frequency",
        ),
        Remedy(
            "Launch fewer kernels",
            "model = torch.compile(model, mode='reduce-overhead')  # or CUDA graphs, on every rank",
            captures=True,
        ),
    ),
    "synchronization": Remedy(
        "Remove the waits from that rank's step",
        "# read losses and metrics back every N steps; no .item() or print under `if rank == 0`",
    ),
    "allocation": Remedy(
        "Keep its memory allocated",
        "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n# equal shapes on all ranks",
    ),
    "copies": Remedy(
        "Overlap its copies with compute",
        "x = x.to('cuda', non_blocking=True)  # from pinned memory\n"
        "# is the rank's memory on the socket of its GPU? nvidia-smi topo -m",
    ),
    "unknown": Remedy(
        "Look at this rank alone",
        "warplens compare PROFILE_OF_ANOTHER PROFILE_OF_THIS_RANK",
        "shows the kernels and pauses that differ",
    ),
}

#: Cause of a late rank → causes of idle time that belong to it.
_IDLE: Final = {
    "host": ("host",),
    "synchronization": ("synchronization", "refill"),
    "allocation": ("allocation",),
    "copies": ("blocking-copy",),
}


#: A step in which a rank is later than in the median step counts as this many times that at most.
_LONG: Final = 3.0


class Straggler(RanksRule):
    """A rank that arrives last at most collectives, or up to half of the ranks together, so that all others wait."""

    id = "straggler"
    question = "Are some ranks later than the others, so that these wait for them in collectives?"
    limiter = "ranks that are late"
    cause = "late ranks, for which the others wait in their collectives"
    raised_when = (
        "one rank arrives last more often than its share and alone causes twice its share of all delay (of two "
        "ranks, three quarters); or some ranks, at most half, arrive after all others in half of the collectives, by "
        "a quarter of the time between the first and the last arrival; and the waiting of the others takes 2 % and may "
        "cost as much"
    )
    claimed = "the time for which each other rank waits in collectives for the late ones"
    beside = "the late rank's excess and transfers that queue behind it"
    headline = "Limited by waiting for late ranks: {share} of the time of all GPUs"
    evidence: ClassVar = {
        "collectives_per_step": "collectives that were found on several ranks",
        "late_ranks_count": "ranks that are late together",
        "last_share": "share of these in which one of them arrived last",
        "caused_share": "share of all delay that they alone caused",
        "waited_ns_per_step": "time for which each other rank waits for the last one with nothing computed; mean",
        "waited_share": "the same, of the window",
        "most_waiting_rank_share": "the same on the rank that waits the longest",
        "excess_compute_ns_per_step": "compute time of the late rank beyond the median of the others",
        "excess_kernels_per_step": "kernels of the late rank beyond the mean of the others",
        "excess_longer_ns_per_step": "extra time of kernels of the same name on the late rank, which run as often",
        "excess_idle_ns_per_step": "idle time of the late rank beyond the median of the others",
        "explained_share": "share of that waiting, less what the hosts need anyway, that the late rank's excess "
        "explains",
        "host_needed_of_window_share": "host time of the waiting ranks, as recorded: waiting that the host "
        "needs anyway costs nothing",
    }
    refutation = (
        "Swap the late rank's data with another rank's, then its GPU: if the delay moves with neither, its host is "
        "the cause. If the step takes as long without the rank's extra work, something else delayed the others."
    )
    explained_share = Limit(0.5, "A cause that explains less than half of the waiting is not the main one.")
    most_chance = Limit(0.01, "Of runs whose ranks are late by chance, at most one in a hundred has a sure late rank.")

    def set_apart(self, run: Run, limits: Thresholds) -> bool:
        """Whether waiting for the late rank does not count as communication: chance does not explain it, and it warns.

        Neither part of a cost that is divided need be worth a warning.
        """
        waiting = self._waiting(run)
        if waiting is None or self._chance(run, waiting[0]) > self.most_chance:
            return False
        found = self.across(run, limits)
        return found is not None and found.severity != "info"

    @staticmethod
    def _chance(run: Run, late: Sequence[int]) -> float:
        """The chance that the latest of equal ranks are this late.

        One-sided p-value of Student's t-test on how far the first of them is behind the mean of the others in each
        step, times the number of ways to choose as many ranks. In one step, collectives need not be independent. A
        single long delay proves nothing.
        """
        from scipy import special

        is_late, start = pl.col("rank").is_in(list(late)), pl.col("start_ns")
        arrivals = run.result.waits.members.group_by("collective").agg(
            (start.filter(is_late).min() - start.filter(~is_late).mean()).alias("behind"), start.min()
        )
        behind = arrivals.drop_nulls("behind").sort("start_ns", "collective")["behind"].to_numpy()
        if 1 < run.steps < len(behind):
            behind = np.array([part.mean() for part in np.array_split(behind, run.steps)])
        most = _LONG * float(np.median(np.abs(behind))) if len(behind) else 0.0
        behind = np.clip(behind, -most, most)
        if len(behind) < 2 or behind.mean() <= 0:
            return 1.0
        error = max(float(behind.std(ddof=1)) / len(behind) ** 0.5, 1.0)
        chance = float(special.stdtr(len(behind) - 1, -behind.mean() / error))
        return min(math.comb(len(run.ranks), len(late)) * chance, 1.0)

    def _waiting(self, run: Run) -> tuple[tuple[int, ...], dict[int, float]] | None:
        """The late ranks, the latest first, and the time that each other rank waited for them."""
        late = run.result.late
        if not late:
            return None
        held = dict(held_up(run.result.waits, late).select("rank", pl.col("held_ns").cast(pl.Float64)).iter_rows())
        # By the schedule of a pipeline, one of two stages always comes last: it is only late for a known cause.
        caused = delays(run.result.waits, late).join(
            run.result.waits.collectives.select("collective", pl.col("kind").cast(pl.String)), on="collective"
        )
        exchanged = caused.filter(pl.col("kind") == "send_recv")["delay_ns"].sum()
        if held and 2 * exchanged > caused["delay_ns"].sum() and self._why(run, late[0], held)[0] == "unknown":
            return None
        return (late, held) if held else None

    def _why(self, run: Run, late: int, held: Mapping[int, float]) -> tuple[str, dict[str, float], float, float]:
        """The cause of the late rank, its excess by cause, and the others' waiting that costs time.

        Last, the share of that waiting that the excess explains.
        """
        others = [run.ranks[rank] for rank in held]
        excess = _excess(run.ranks[late], _alongside(run, late, held))
        cause = max(excess, key=lambda name: excess[name])
        # Waiting during which the hosts issue the next work costs nothing and needs no explanation.
        costs = sum(
            own.unprofiled_ns(1.0) - own.unprofiled_ns(1.0, held[rank]) for rank, own in zip(held, others, strict=True)
        )
        explained = min(sum(max(spent, 0.0) for spent in excess.values()) * len(held) / max(costs, 1.0), 1.0)
        if excess[cause] <= 0 or explained < self.explained_share:
            cause = "unknown"
        return cause, excess, costs, explained

    def _lost_ns(self, run: Run, late: int, held: Mapping[int, float]) -> dict[int, float]:
        """Time that the late rank costs each other rank: waiting for it, and transfers that queue behind that.

        Without it, these transfers would run beside compute. Transfers that nothing hides take as long on the late
        rank, so that the time is what a rank has of exposed communication beyond the late one.
        """
        own = run.ranks[late].exposed_ns
        scales = _scales(run, late, held)
        return {rank: max(held[rank], run.ranks[rank].exposed_ns - own / scales[rank]) for rank in held}

    def _pace(self, run: Run, late: int, held: Mapping[int, float]) -> float:
        """Time of the late rank's steps over that of the others', at least 1; 1 as well if their steps differ.

        All go at its pace, but the others' first step may end before they wait for it.
        """
        steps = {rank: len(run.summary(rank).window.steps) for rank in (late, *held)}
        if len(set(steps.values())) > 1:
            return 1.0
        return max(run.ranks[late].wall_ns / max(median(run.ranks[rank].wall_ns for rank in held), 1), 1.0)

    def claim(self, facts: Facts) -> Float64s | None:
        """The waiting in collectives that mostly wait for the late rank: most of their time has this cause."""
        part = self.part(facts)
        return None if part is None else np.where(part > 1 / 2, part, 0.0)

    @remembered
    def part(self, facts: Facts) -> Float64s | None:
        """The waiting in collectives for the late ranks alone; None if it is not set apart."""
        run = run_of(facts)
        waiting = self._waiting(run) if run is not None and self.set_apart(run, facts.thresholds) else None
        if run is None or waiting is None:
            return None
        late, waits = waiting[0], run.result.waits
        members = waits.members.filter(~pl.col("rank").is_in(late)).join(delays(waits, late), on="collective")
        return waited_share(facts, run, members, pl.min_horizontal("exposed_wait_ns", "delay_ns"))

    def across(self, run: Run, limits: Thresholds) -> Finding | None:
        """The finding, if the run has it."""
        waiting = self._waiting(run)
        if waiting is None:
            return None
        late_ranks, held = waiting
        late = late_ranks[0]
        mean = sum(held.values()) / len(held)
        lost = self._lost_ns(run, late, held)
        if ceiling(round(run.wall_ns), mean) < limits.raise_ceiling:
            return None
        shares = run.shares(held).values()
        others = _alongside(run, late, held)
        cause, excess, costs, explained = self._why(run, late, held)
        advice, stall = _ADVICE[cause], run.ranks[late].stall
        remedies = advice if isinstance(advice, tuple) else (advice,)
        if cause == "host" and stall is not None:
            remedies = (*(Remedy(remedy.action, remedy.how) for remedy in stall.remedies[:1]), *remedies)
        reason = _CAUSES[cause].format(excess=f"{excess.get(cause, 0.0) / run.steps / 1e6:.1f} ms")
        if len(late_ranks) > 1:
            reason = f"on rank {late}, the latest, {reason}"
        waits_text = f"{mean / run.steps / 1e6:.1f} ms per step"
        if costs < self.explained_share * sum(held.values()):
            own_ms = costs / len(held) / run.steps / 1e6
            waits_text += f", of which {own_ms:.1f} ms cost time, as their hosts are busy meanwhile"
        # The late rank cannot save more than its excess; the profiler's time in launches does not count.
        own = run.ranks[late]
        saved = sum(
            max(spent, 0.0) * (own.unprofiled_share if name == "launch" else 1.0) for name, spent in excess.items()
        )
        most = saved if cause != "unknown" else float(own.wall_ns)
        # Work that is dealt out evenly still takes its time: that of the mean rank.
        stays = len(late_ranks) / (len(late_ranks) + len(held)) if cause == "larger-part" else 0.0
        warning = None
        if cause == "launch":
            spent = [scale * held[rank] for rank, scale in _scales(run, late, held).items()]
            paced = [self._launched_alike(own, others, spent, pace) for pace in PACES]
            alone = paced[0], float(np.mean(paced)), paced[-1]
            # Without the profiler, the late host may be ahead of its GPU.
            warning = limits.unsure_warning_ceiling if paced[0] < limits.raise_ceiling else None
        else:
            # The slowest of the others then sets the pace.
            known = min(*lost.values(), most)
            alone = gains_of(run.ranks, held if cause == "unknown" else dict.fromkeys(held, known), stays)
        behind, evident = self._pace(run, late, held), self._chance(run, late_ranks) <= self.most_chance
        gains = tuple(behind * gain for gain in alone)
        if max(gains) < limits.raise_ceiling:
            return None
        if sorted(gains)[1] < limits.raise_ceiling:
            reason += "; without it the hosts would limit the step just as much"

        def beyond(name: str) -> float:
            """This time of the late rank beyond the median of the others, per step."""
            summaries = [run.summary(rank) for rank in (late, *held)]
            own, *usual = (each.times[name] / max(len(each.window.steps), 1) for each in summaries)
            return own - median(usual)

        waits = run.result.waits.ranks.filter(pl.col("rank").is_in(list(held)))
        exposed = dict(waits.select("rank", "exposed_wait_ns").iter_rows())
        return self.costing(
            limits,
            gains,
            sure=run.sure,
            bound=behind * max(bound_of(run.ranks[rank], max(exposed[rank], lost[rank])) for rank in held),
            title=f"{_named(late_ranks)}, {waits_text}: {reason}",
            confidence="low" if not run.sure else "high" if cause != "unknown" and evident else "medium",
            evidence={
                **_arrivals(run, late_ranks),
                "waited_ns_per_step": mean / run.steps,
                "waited_share": sum(shares) / len(shares),
                "most_waiting_rank_share": max(shares),
                "excess_compute_ns_per_step": beyond("compute_ns"),
                "excess_kernels_per_step": (_count(run.ranks[late]) - sum(map(_count, others)) / len(others))
                / run.steps,
                "excess_longer_ns_per_step": (excess["slower-kernels"] + excess["larger-part"]) / run.steps,
                "excess_idle_ns_per_step": beyond("idle_ns"),
                "explained_share": explained,
                "host_needed_of_window_share": median(min(each.host_ns / max(each.wall_ns, 1), 1.0) for each in others),
            },
            where=(*(f"rank {rank}" for rank in late_ranks[:MOST_LISTED]), *_where(run.ranks[late], others, cause)),
            remedies=(
                *remedies,
                Remedy(
                    "Compare it with another rank",
                    "warplens compare PROFILE_OF_ANOTHER PROFILE_OF_THIS_RANK\n"
                    "warplens ranks FOLDER  # all collectives",
                    "shows every kernel and pause that differs",
                ),
            ),
            warning=warning,
        )

    def _launched_alike(
        self, late: RankFacts, others: Sequence[RankFacts], held: Sequence[float], pace: float
    ) -> float:
        """Gain if the late rank's host issues its work as fast as the others', at this pace (of `PACES`).

        Args:
            others: windows of as many steps.
            held: how long each of them waits for the late rank.
        """
        left = max(each.unprofiled_ns(each.paced(pace), spent) for each, spent in zip(others, held, strict=True))
        usual = round(median(each.host_ns for each in others))
        as_usual = replace(late, host_ns=min(late.host_ns, usual))
        share = late.paced(pace)
        return max(late.unprofiled_ns(share), left) / max(as_usual.unprofiled_ns(share), left, 1.0)


def _named(late: Sequence[int]) -> str:
    """The late ranks, as the beginning of a title."""
    if len(late) == 1:
        return f"Rank {late[0]} is late and the others wait for it"
    return f"{len(late)} ranks ({listed(sorted(late))}) are late and the others wait for them"


def _arrivals(run: Run, late: Sequence[int]) -> dict[str, float]:
    """How often the late ranks arrive last, and how much of all delay they alone cause."""
    waits = run.result.waits
    is_late = pl.col("rank").is_in(list(late))
    shared = waits.members.filter(is_late.any().over("collective") & (~is_late).any().over("collective"))
    matched = shared["collective"].n_unique()
    delayed = delays(waits, late)
    caused, others = int(delayed["delay_ns"].sum()), waits.ranks.filter(~is_late)["delay_ns"].sum()
    return {
        "collectives_per_step": matched / run.steps,
        "late_ranks_count": len(late),
        "last_share": delayed.height / max(matched, 1),
        "caused_share": caused / max(caused + int(others), 1),
    }


def _scales(run: Run, late: int, held: Mapping[int, float]) -> dict[int, float]:
    """Steps of the late rank's window over those of each other rank's."""
    steps = {rank: max(len(run.summary(rank).window.steps), 1) for rank in (late, *held)}
    return {rank: steps[late] / steps[rank] for rank in held}


def _alongside(run: Run, late: int, held: Mapping[int, float]) -> list[RankFacts]:
    """The other ranks, scaled to as many steps as the window of the late rank has."""
    return [run.ranks[rank].scaled(scale) for rank, scale in _scales(run, late, held).items()]


def _count(facts: RankFacts) -> int:
    return int(facts.kernels["kernels"].sum())


def _excess(late: RankFacts, others: Sequence[RankFacts]) -> dict[str, float]:
    """Nanoseconds of the late rank's window beyond those of the others, by cause."""
    keys = ["name", "blocks"]
    usual = (
        pl.concat([each.kernels for each in others])
        .group_by(keys)
        .agg(
            (pl.col("kernels").sum() / len(others)).alias("usual"),
            (pl.col("time_ns").sum() / len(others)).alias("taken"),
        )
    )
    kinds = (
        late.kernels.join(usual, on=keys, how="full", coalesce=True, nulls_equal=True)
        .with_columns(pl.col("kernels", "usual", "time_ns", "taken").fill_null(0).cast(pl.Float64))
        .with_columns((pl.col("time_ns") - pl.col("taken")).alias("beyond"))
    )
    # A kernel that runs as often in the same grid and takes longer is slower; one that runs more often is more work.
    as_often = (pl.col("kernels") - pl.col("usual")).abs() <= _AS_OFTEN * pl.col("usual")
    alike = kinds.filter(as_often)
    slower, taken = float(alike["beyond"].sum()), float(alike["taken"].sum())
    more, larger = float(kinds["beyond"].sum()) - slower, 0.0
    # A slow GPU runs products of the same grid more slowly, whatever their data. If as many kernels run, but in other
    # grids, or only others take longer (attention over longer documents), it is the data that differ.
    products = alike.filter(pl.col("is_product").fill_null(value=False))
    judged = products if products["taken"].sum() >= _AS_OFTEN * taken else alike
    threshold = (1 + slower / max(taken, 1.0) / 2) * pl.col("taken")
    affected = float(judged.filter(pl.col("time_ns") > threshold)["taken"].sum())
    same_grids = taken >= _NEARLY_ALL * float(kinds["taken"].sum())
    is_gpu = same_grids and affected >= _OF_ALL * float(judged["taken"].sum())
    # More work is launched in addition; other data change grids, and which kernels a library picks.
    by_name = kinds.group_by("name").agg(pl.col("kernels", "usual", "beyond").sum())
    differing = by_name.filter(~as_often)
    added = (differing["kernels"] - differing["usual"]).to_numpy()
    is_extra = (
        added.sum() >= _OF_ALL * np.abs(added).sum()
        and float(differing["beyond"].sum()) >= _OF_ALL * float(kinds["beyond"].sum()) > 0
    )
    if not is_gpu and not is_extra:
        slower, more, larger = 0.0, 0.0, more + slower
    idle = {
        name: sum(late.idle.get(cause, 0) for cause in causes)
        - median(sum(each.idle.get(cause, 0) for cause in causes) for each in others)
        for name, causes in _IDLE.items()
    }
    # Waiting hides the others' own pauses, so host time is compared as a whole and then divided.
    host = late.host_ns - median(each.host_ns for each in others)
    idle["host"] = min(idle["host"], max(host, 0.0))
    idle["launch"] = host - idle["host"]
    return {"more-work": more, "larger-part": larger, "slower-kernels": slower, **idle}


def _where(late: RankFacts, others: Sequence[RankFacts], cause: str) -> tuple[str, ...]:
    """The most specific range with most of the late rank's excess, and the kernel with the most."""
    if cause == "host" and late.stall is not None:
        return late.stall.where[:2]
    if cause not in ("more-work", "larger-part", "slower-kernels"):
        return ()

    def beyond(own: pl.DataFrame, usual: Sequence[pl.DataFrame], amount: str) -> pl.DataFrame:
        mean = pl.concat(usual).group_by("name").agg((pl.col(amount).sum() / len(others)).alias("usual"))
        summed = own.group_by("name").agg(pl.col(amount).sum())
        joined = summed.join(mean, on="name", how="left").with_columns(pl.col("usual").fill_null(0.0))
        excess = joined.with_columns((pl.col(amount) - pl.col("usual")).alias("excess")).filter(pl.col("excess") > 0)
        return excess.sort(["excess", "name"], descending=[True, False])

    places = beyond(late.places, [each.places for each in others], "busy_ns")
    kernels = beyond(late.kernels, [each.kernels for each in others], "time_ns")
    names: list[str] = kernels["name"].head(1).to_list()
    if places.height:
        # Among the ranges with nearly all of the excess, the one with the least other work.
        most = places.filter(pl.col("excess") >= _NEARLY_ALL * places["excess"][0]).sort("busy_ns", "name")
        names = [most["name"][0], *names]
    return tuple(names)


#: Largest relative difference between counts of a kernel on two ranks that run the same program: windows end
#: differently.
_AS_OFTEN: Final = 0.05

#: Least share of the time of all kernels in those that are slower, if their GPU is.
_OF_ALL: Final = 0.5

#: Least share of the largest excess of any range that an inner range needs; of the time of all kernels in those that a
#: slow GPU runs in the same grids as the others.
_NEARLY_ALL: Final = 0.8
