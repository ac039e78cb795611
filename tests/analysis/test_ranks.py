"""Several ranks together: stragglers, waits, matching, clocks and balance, on traces that can be counted by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import polars as pl
import pytest

from tests.analysis.builders import copy, graph, kernel, launch, nvtx, trace
from tests.analysis.rank_traces import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    SEND_RECV,
    collective,
    rank_trace,
    together,
)
from warplens.analysis.ranks import across
from warplens.analysis.ranks.across import rank_in_name
from warplens.analysis.ranks.collectives import (
    bus_factor,
    kind_of_description,
    kind_of_kernel,
    kind_of_range,
    size_bytes,
)
from warplens.analysis.ranks.measures import split_ranks
from warplens.analysis.ranks.summary import summarize
from warplens.analysis.timebudget import time_budgets
from warplens.analysis.timeline import Timeline
from warplens.errors import UsageError

US = 1_000
MS = 1_000_000

RANKS = 8
STEPS = 10
SLOW = 5
STEP_NS = 1 * MS
#: Compute of a step: rank r takes 400 µs + r µs, the slow one 700 µs.
COMPUTE_NS = [700 * US if rank == SLOW else 400 * US + rank * US for rank in range(RANKS)]
#: The all-reduce of a step lasts so long from the last arrival on.
TRANSFER_NS = 50 * US
#: By how much the epoch that each rank records is wrong.
CLOCK_ERROR_NS = [0, 3_000, -7_000, 11_000, -20_000, 90_000, -1, 40_000]
EPOCH_NS = 1_700_000_000_000_000_000
SIZE_BYTES = 4 * 1_000_000


@pytest.fixture(scope="module")
def planted():
    """Eight ranks that reduce after every step, one of them slow, their clocks apart."""
    traces = []
    for rank in range(RANKS):
        begins = [step * STEP_NS for step in range(STEPS)]
        off = 1_000_000 * rank  # each file counts from another zero
        computes = [(begin - off, begin - off + COMPUTE_NS[rank]) for begin in begins]
        reduced = [begin - off + max(COMPUTE_NS) + TRANSFER_NS for begin in begins]
        reductions = [
            collective(
                busy_until,
                end,
                described="allreduce",
                group="0",
                ranks="[0, 1, 2, 3, 4, 5, 6, 7]",
                size=RANKS,
                sequence=number + 1,
                in_elements=1_000_000,
                out_elements=1_000_000,
                dtype="Float",
            )
            for number, ((_, busy_until), end) in enumerate(zip(computes, reduced, strict=True))
        ]
        epoch = EPOCH_NS + off + CLOCK_ERROR_NS[rank]
        traces.append(
            rank_trace(computes, reductions, source=f"rank{rank}.json", rank=rank, world_size=RANKS, epoch_ns=epoch)
        )
    return together(traces)


def test_the_slow_rank_arrives_last_every_time(planted):
    waits = planted.waits.ranks
    assert dict(waits.select("rank", "last").iter_rows()) == {rank: STEPS * (rank == SLOW) for rank in range(RANKS)}
    assert planted.waits.collectives["last_rank"].to_list() == [SLOW] * STEPS


def test_every_rank_waits_for_the_slow_one_by_exactly_what_it_is_faster(planted):
    waits = dict(planted.waits.ranks.select("rank", "wait_ns").iter_rows())
    assert waits == {rank: STEPS * (COMPUTE_NS[SLOW] - COMPUTE_NS[rank]) for rank in range(RANKS)}
    # Nothing is computed meanwhile: all of it is exposed.
    assert planted.waits.ranks["exposed_wait_ns"].to_list() == planted.waits.ranks["wait_ns"].to_list()


def test_what_remains_of_a_communication_kernel_is_transfer(planted):
    assert planted.waits.ranks["transfer_ns"].to_list() == [STEPS * TRANSFER_NS] * RANKS
    assert planted.waits.ranks["unmatched_ns"].to_list() == [0] * RANKS


def test_the_slow_rank_holds_up_by_what_it_is_behind_the_last_but_one(planted):
    behind = COMPUTE_NS[SLOW] - max(time for rank, time in enumerate(COMPUTE_NS) if rank != SLOW)
    delays = dict(planted.waits.ranks.select("rank", "delay_ns").iter_rows())
    assert delays == {rank: STEPS * behind * (rank == SLOW) for rank in range(RANKS)}


def test_the_wrong_epochs_are_found_from_the_ends_of_collectives(planted):
    clocks = planted.alignment.ranks
    assert clocks["shift_ns"].to_list() == [CLOCK_ERROR_NS[0] - error for error in CLOCK_ERROR_NS]
    assert (planted.alignment.residual_median_ns, planted.alignment.residual_max_ns) == (0, 0)
    assert clocks["clock"].to_list() == ["unix"] * RANKS
    assert planted.alignment.warning is None


def test_the_imbalance_is_the_most_compute_by_the_mean(planted):
    assert planted.balance.imbalance == pytest.approx(max(COMPUTE_NS) / (sum(COMPUTE_NS) / RANKS))


def test_bus_bandwidth_is_that_of_nccl_tests(planted):
    row = planted.groups.row(0, named=True)
    assert (row["kind"], row["group"], row["group_size"], row["size_bytes"]) == ("all_reduce", "0", RANKS, SIZE_BYTES)
    assert (row["kernels"], row["collectives"], row["transfer_median_ns"]) == (RANKS * STEPS, STEPS, TRANSFER_NS)
    assert row["algorithm_bytes_per_s"] == pytest.approx(SIZE_BYTES / 50e-6)
    assert row["bus_bytes_per_s"] == pytest.approx(SIZE_BYTES / 50e-6 * 2 * 7 / 8)
    assert row["own_bus_bytes_per_s"] == pytest.approx(SIZE_BYTES / (row["median_ns"] * 1e-9) * 2 * 7 / 8)


def test_every_collective_is_matched_by_its_number(planted):
    row = planted.matching.row(0, named=True)
    assert (row["method"], row["kernels"], row["matched"], row["rejected"]) == ("sequence", 80, 80, 0)


def test_numbers_that_begin_anywhere_match_what_all_ranks_have():
    """A recording that began one collective later: numbers match the rest, order would match wrong ones."""

    def numbered(first: int) -> list:
        return [
            collective(n * 100, n * 100 + 50, described="allreduce", group="0", ranks="[0, 1]", size=2, sequence=n)
            for n in range(first, 6)
        ]

    result = together([rank_trace([], numbered(1), rank=0), rank_trace([], numbered(2), rank=1)])
    assert result.waits.collectives.height == 4
    assert result.matching.row(0, named=True)["matched"] == 8


def test_overlap_is_the_share_of_communication_during_which_the_rank_computes():
    """Compute 0–100 and 150–200; communication 80–160: 20 + 10 of 80 are hidden, 50 exposed."""
    result = together([rank_trace([(0, 100), (150, 200)], [collective(80, 160)])])
    row = result.balance.ranks.row(0, named=True)
    assert (row["communication_ns"], row["overlapped_ns"], row["exposed_ns"]) == (80, 30, 50)
    assert row["overlap_share"] == pytest.approx(30 / 80)
    assert (row["compute_ns"], row["idle_ns"], row["duration_ns"]) == (150, 0, 200)


def test_times_of_a_rank_are_the_groups_of_its_time_budget():
    made = trace(
        kernels=[kernel(10, 40), kernel(30, 60, stream=8), kernel(50, 90, ALL_REDUCE, stream=9)],
        copies=[copy(80, 120)],
        graph_launches=[graph(130, 150)],
        window_ns=(0, 200),
    )
    summary = summarize(made, "all")[0]
    budget = time_budgets(Timeline(made), Timeline(made).window("all"))[0]
    times = summary.times
    assert times["compute_ns"] == budget.group_ns("compute") == 50
    assert times["exposed_ns"] == budget.group_ns("communication") == 30
    assert times["copy_ns"] == budget.group_ns("copy") == 30
    assert times["graph_ns"] == budget.group_ns("graph") == 20
    assert times["idle_ns"] == budget.group_ns("idle") == 70
    assert sum(times[key] for key in ("compute_ns", "graph_ns", "exposed_ns", "copy_ns", "idle_ns")) == 200


def test_waiting_that_compute_hides_is_not_exposed():
    """Rank 0 begins to wait at 0 and computes from 0 to 60; rank 1 comes at 100."""
    first = rank_trace([(0, 60)], [collective(0, 150)], rank=0, epoch_ns=0)
    second = rank_trace([(0, 100)], [collective(100, 150)], rank=1, epoch_ns=0)
    waits = together([first, second]).waits.ranks.row(0, named=True)
    assert (waits["wait_ns"], waits["exposed_wait_ns"], waits["transfer_ns"]) == (100, 40, 50)


def test_without_numbers_collectives_are_paired_by_order():
    first = rank_trace([], [collective(0, 30), collective(100, 130)], rank=0, epoch_ns=0)
    second = rank_trace([], [collective(10, 30), collective(120, 130)], rank=1, epoch_ns=0)
    result = together([first, second])
    assert result.matching.row(0, named=True)["method"] == "order"
    assert result.waits.collectives["wait_ns"].to_list() == [10, 20]


def test_sampled_traces_are_paired_by_time():
    """Equal counts, but each rank lost another collective: order would pair what does not run together."""
    first = rank_trace([], [collective(t, t + 30 * US) for t in (0, 1 * MS, 2 * MS, 3 * MS)], rank=0, epoch_ns=0)
    second = rank_trace(
        [], [collective(t + 5 * US, t + 30 * US) for t in (1 * MS, 2 * MS, 3 * MS, 4 * MS)], rank=1, epoch_ns=0
    )
    result = together([first, second])
    row = result.matching.row(0, named=True)
    assert (row["method"], row["kernels"], row["matched"]) == ("time", 8, 6)
    assert result.waits.collectives["wait_ns"].to_list() == [5 * US] * 3


def test_pairs_of_different_size_are_rejected():
    def sized(elements: int):
        return collective(
            0, 50, described="allreduce", group="0", ranks="[0, 1]", size=2, in_elements=elements, dtype="Float"
        )

    result = together([rank_trace([], [sized(8)], rank=0, epoch_ns=0), rank_trace([], [sized(16)], rank=1, epoch_ns=0)])
    assert result.matching.row(0, named=True)["matched"] == 0
    assert not result.waits.collectives.height


def test_groups_are_kept_apart():
    """Two groups of two ranks each, both called by another name: nobody of one waits for the other."""

    def of_group(name: str, ranks: str, start: int):
        return [collective(start, 100, described="allreduce", group=name, ranks=ranks, size=2, sequence=1)]

    result = together(
        [
            rank_trace([], of_group("1", "[0, 1]", 0), rank=0, epoch_ns=0),
            rank_trace([], of_group("1", "[0, 1]", 10), rank=1, epoch_ns=0),
            rank_trace([], of_group("2", "[2, 3]", 60), rank=2, epoch_ns=0),
            rank_trace([], of_group("2", "[2, 3]", 90), rank=3, epoch_ns=0),
        ]
    )
    assert result.waits.ranks["wait_ns"].to_list() == [10, 0, 30, 0]
    assert result.waits.collectives["ranks"].to_list() == [2, 2]


def test_a_group_that_is_not_named_is_found_by_time():
    """Four ranks in pairs, without any description: the pairs end together, and not with the others."""
    pair_a = [collective(t, t + 40 * US) for t in (0, 5 * MS)]
    pair_b = [collective(t + 2_500 * US, t + 2_540 * US) for t in (0, 5 * MS, 10 * MS)]
    result = together(
        [rank_trace([], rows, rank=rank, epoch_ns=0) for rank, rows in enumerate((pair_a, pair_a, pair_b, pair_b))]
    )
    assert result.waits.collectives["ranks"].to_list() == [2] * 5
    assert result.matching.row(0, named=True)["matched"] == 10


def test_one_number_for_several_kernels_pairs_the_first_with_the_first():
    def coalesced(shift: int):
        return [
            collective(t + shift, t + 40, described="allgather", group="0", ranks="[0, 1]", size=2, sequence=7)
            for t in (0, 100)
        ]

    result = together(
        [rank_trace([], coalesced(0), rank=0, epoch_ns=0), rank_trace([], coalesced(9), rank=1, epoch_ns=0)]
    )
    assert result.waits.collectives["wait_ns"].to_list() == [9, 9]


def test_a_root_that_leaves_a_broadcast_early_waits_no_longer_than_it_stays():
    root = rank_trace([], [collective(0, 30, BROADCAST)], rank=0, epoch_ns=0)
    other = rank_trace([], [collective(20, 60, BROADCAST)], rank=1, epoch_ns=0)
    waits = together([root, other]).waits.ranks
    assert waits.select("wait_ns", "transfer_ns").rows() == [(20, 10), (0, 40)]


def test_sends_among_more_than_two_ranks_have_no_peers_to_be_paired_with():
    traces = [rank_trace([], [collective(0, 50, SEND_RECV)], rank=rank) for rank in range(3)]
    assert together(traces).matching.row(0, named=True)["method"] == "no peers"


def test_without_any_epoch_collectives_alone_bring_the_clocks_together():
    hour = 3_600 * 1_000_000_000
    first = rank_trace([], [collective(t, t + 40) for t in range(0, 1000, 100)], rank=0)
    second = rank_trace([], [collective(hour + t + 15, hour + t + 40) for t in range(0, 1000, 100)], rank=1)
    result = together([first, second])
    assert result.alignment.ranks["shift_ns"].to_list() == [0, -hour]
    assert result.waits.ranks["wait_ns"].to_list() == [150, 0]
    assert "no common Unix time" in result.alignment.method


@pytest.mark.parametrize("kept", [slice(2, None), slice(0, -3), slice(2, -1)])
def test_without_any_epoch_recordings_that_begin_or_end_apart_are_paired_by_what_fits(kept):
    """Steps of different lengths tell which collective is which; by order, chance pairs would connect the clocks."""
    times = [t * MS + (t * t * 37) % 11 * 50 * US for t in range(20)]
    first = rank_trace([], [collective(t, t + 300 * US) for t in times[:-2]], rank=0)
    late = [collective(5 * MS + t + 100 * US, 5 * MS + t + 300 * US) for t in times[kept]]
    second = rank_trace([], late, rank=1)
    result = together([first, second])
    common = len(set(range(18)) & set(range(20)[kept]))
    row = result.matching.row(0, named=True)
    assert (row["method"], row["matched"]) == ("shifted order", 2 * common)
    assert result.alignment.ranks["aligned"].all()
    assert result.waits.ranks["wait_ns"].to_list() == [100 * US * common, 0]


@pytest.mark.parametrize("count", [4, 7, 10, 17, 24, 50])
def test_order_stays_where_jitter_alone_makes_another_pairing_fit_better(count):
    generator = np.random.default_rng(count)
    place = np.repeat(np.arange(2, dtype=np.int32), count)
    for jitter, variation in product((1 * US, 10 * US), (1 * US, 100 * US)):
        for _ in range(50):
            times = np.cumsum(generator.normal(MS, variation, count))
            end = np.concatenate([times + generator.normal(0, jitter, count) for _ in range(2)]).astype(np.int64)
            assert across._shifted_order(place, end - 1000, end) is None


@pytest.mark.parametrize("shift", [2, 6])
def test_a_shift_is_found_in_spite_of_jitter(shift):
    generator = np.random.default_rng(shift)
    times = np.cumsum(generator.normal(MS, 100 * US, 66))
    starts = (0, shift)
    end = np.concatenate([times[i : i + 60] + generator.normal(0, 10 * US, 60) for i in starts]).astype(np.int64)
    position = across._shifted_order(np.repeat(np.arange(2, dtype=np.int32), 60), end - 1000, end)
    assert position is not None
    assert (position[0], position[60]) == (0, shift)


def test_a_rank_that_nothing_connects_is_left_out_and_named():
    first = rank_trace([], [collective(0, 40)], rank=0)
    second = rank_trace([(0, 40)], [], rank=1)
    result = together([first, second])
    assert result.alignment.ranks["aligned"].to_list() == [True, False]
    assert result.alignment.warning is not None
    assert "ranks 1 " in result.alignment.warning
    assert [note.code for note in result.notes] == ["clocks-apart", "unmatched-collectives"]


def test_clocks_are_reached_over_ranks_between():
    """Ranks 0 and 2 share no group; both share one with rank 1."""

    def at(offset: int, name: str, ranks: str):
        return [
            collective(t + offset, t + offset + 40, described="allreduce", group=name, ranks=ranks, size=2, sequence=t)
            for t in range(0, 500, 100)
        ]

    traces = [
        rank_trace([], at(0, "a", "[0, 1]"), rank=0),
        rank_trace([], [*at(1_000, "a", "[0, 1]"), *at(1_050, "b", "[1, 2]")], rank=1),
        rank_trace([], at(7_050, "b", "[1, 2]"), rank=2),
    ]
    result = together(traces)
    assert result.alignment.ranks["shift_ns"].to_list() == [0, -1_000, -7_000]
    assert result.alignment.aligned.all()


def test_a_drifting_clock_is_straightened():
    """Rank 1's clock runs 20 ppm fast: over a second that is 20 µs, which would drown waits of 1 µs."""
    times = [number * 10 * MS for number in range(100)]
    first = rank_trace([], [collective(t, t + 100 * US) for t in times], rank=0, epoch_ns=0)
    fast = [(round((t + 1_000) * 1.00002), round((t + 100 * US) * 1.00002)) for t in times]
    second = rank_trace([], [collective(*span) for span in fast], rank=1, epoch_ns=0)
    result = together([first, second])
    assert result.alignment.ranks["drift_ppm"][1] == pytest.approx(-20, abs=0.1)
    assert result.alignment.residual_max_ns <= 2
    assert result.waits.ranks["wait_ns"][0] == pytest.approx(100 * 1_000, rel=0.01)
    assert result.waits.ranks["last"].to_list() == [0, 100]


def test_broadcasts_do_not_move_clocks_that_are_common_already():
    """The root leaves early: its end says nothing of the clocks."""
    root = rank_trace([], [collective(0, 30, BROADCAST)] * 1, rank=0, epoch_ns=0)
    other = rank_trace([], [collective(0, 60, BROADCAST)], rank=1, epoch_ns=0)
    assert together([root, other]).alignment.ranks["shift_ns"].to_list() == [0, 0]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank0.json.gz", 0),
        ("trace_rank_12.json", 12),
        ("rank-3.sqlite", 3),
        ("run7.RANK=5.nsys-rep", 5),
        ("trace_r3.json", 3),
        ("r10.json.gz", 10),
        ("worker_global_rank07.json", 7),
        ("h100x2_before.sqlite", None),
        ("ranks.json", None),
        ("frank.json", None),
        ("bert_r2d2.json", None),
    ],
)
def test_the_rank_in_a_name(name, rank):
    assert rank_in_name(name) == rank


def test_the_files_own_record_comes_before_its_name():
    result = together(
        [rank_trace([(0, 9)], source="rank7.json", rank=1), rank_trace([(0, 9)], source="x.json", rank=0)]
    )
    assert result.ranks == (0, 1)
    assert [summary.source for summary in result.summaries] == ["x.json", "rank7.json"]
    assert result.placing.how == ("file", "file")


def test_files_that_tell_no_rank_are_numbered_in_order():
    result = together([rank_trace([(0, 9)], source="b.json"), rank_trace([(0, 9)], source="a.json")])
    assert [(rank, summary.source) for rank, summary in zip(result.ranks, result.summaries, strict=True)] == [
        (0, "b.json"),
        (1, "a.json"),
    ]
    assert "ranks-by-order" in {note.code for note in result.notes}


def test_two_files_of_one_rank_are_an_error_that_names_both():
    with pytest.raises(UsageError, match=r"one\.json and two\.json are both rank 4"):
        together([rank_trace([(0, 9)], source="one.json", rank=4), rank_trace([(0, 9)], source="two.json", rank=4)])


def test_files_of_different_runs_are_an_error():
    with pytest.raises(UsageError, match="world sizes of 2, 4"):
        together([rank_trace([(0, 9)], rank=0, world_size=2), rank_trace([(0, 9)], rank=1, world_size=4)])


def test_a_file_that_tells_no_rank_among_others_that_do_is_an_error():
    with pytest.raises(UsageError, match=r"x\.json does not tell its rank, but rank1\.json does"):
        together([rank_trace([(0, 9)], source="rank1.json"), rank_trace([(0, 9)], source="x.json")])


def test_ranks_without_a_profile_are_noted():
    result = together([rank_trace([(0, 9)], rank=1, world_size=4)])
    assert result.placing.missing == (0, 2, 3)
    assert "3 of the run's 4 ranks" in result.notes[0].text


def test_one_file_of_two_processes_is_two_ranks_on_one_clock():
    made = trace(
        kernels=[
            kernel(0, 50, ALL_REDUCE, process=1, device=0),
            kernel(10, 50, ALL_REDUCE, process=2, device=1),
        ]
    )
    result = together([made])
    assert result.ranks == (0, 1)
    assert result.waits.ranks["wait_ns"].to_list() == [10, 0]
    assert result.alignment.ranks["clock"].to_list() == ["file", "file"]
    assert "share the clock of their one file" in result.alignment.method


def test_each_part_of_a_file_keeps_its_own_rows_and_their_links():
    made = trace(
        kernels=[kernel(0, 10, process=1, device=0), kernel(0, 20, process=2, device=1)],
        ranges=[nvtx(0, 9, "other", process=1), nvtx(0, 9, "outer", process=2), nvtx(1, 5, "inner", process=2)],
        copies=[copy(30, 40, process=2, device=0)],
    )
    first, (*home, second) = split_ranks(made)
    assert (first[:2], home) == ((1, 0), [2, 1])
    assert second.ranges["name"].to_list() == ["outer", "inner"]
    assert second.ranges["parent"].to_list() == [None, 0]
    assert second.copies.height == 0
    assert "work-outside-ranks" in {note.code for note in second.capture.notes}


def test_a_file_of_one_rank_is_not_taken_apart():
    made = trace(kernels=[kernel(0, 10)], copies=[copy(0, 10, device=1)])
    ((_, _, only),) = split_ranks(made)
    assert only is made


def stepped(compute: int) -> list[tuple[int, int]]:
    return [(step * 1_000, step * 1_000 + compute) for step in range(4)]


def test_steps_that_all_ranks_have_are_compared_one_by_one():
    result = together([rank_trace(stepped(100), rank=0), rank_trace(stepped(300), rank=1)], "steady")
    balance = result.balance.step_balance
    assert balance["compute_max_ns"].to_list() == [300] * 4
    assert balance["imbalance"].to_list() == [1.5] * 4
    assert balance["compute_max_rank"].to_list() == [1] * 4
    assert result.balance.imbalance == 1.5


def test_ranks_with_other_steps_are_compared_by_the_share_of_their_windows():
    result = together([rank_trace(stepped(100), rank=0), rank_trace(stepped(300)[:2], rank=1)], "steady")
    shares = result.balance.ranks["compute_share"]
    assert result.balance.imbalance == pytest.approx(shares.max() / shares.mean())
    assert shares.arg_max() == 1


def test_ranks_with_different_steps_are_compared_by_their_windows():
    result = together([rank_trace(stepped(100), rank=0), rank_trace(stepped(300)[:3], rank=1)], "steady")
    assert not result.balance.step_balance.height
    assert "share no steps" in result.balance.how


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (ALL_REDUCE, "all_reduce"),
        (ALL_GATHER, "all_gather"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_half(ncclWorkElem)", "reduce_scatter"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce"),
        (SEND_RECV, "send_recv"),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgs)", "unknown"),
        ("void vllm::cross_device_reduce_1stage<__half, 2>(RankData*)", "all_reduce"),
    ],
)
def test_the_kind_of_a_kernel(name, kind):
    assert kind_of_kernel(name) == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("allreduce", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("send", "send_recv"),
        ("broadcast", "broadcast"),
        ("wait", "unknown"),
    ],
)
def test_the_kind_that_a_framework_names(name, kind):
    assert kind_of_description(name) == kind


def test_only_ranges_of_collectives_name_a_kind():
    assert kind_of_range("nccl:all_to_all, op_id = 991254") == "all_to_all"
    assert kind_of_range("ncclAllReduce") == "all_reduce"
    assert kind_of_range("c10d::alltoall_base_, op_id = 12") == "all_to_all"
    assert kind_of_range("reduce loss") == "unknown"
    assert kind_of_range("ncclGroupEnd") == "unknown"


def test_an_all_to_all_of_sends_is_named_by_the_call_around_it():
    made = trace(
        kernels=[kernel(20, 60, SEND_RECV, correlation=1)],
        api=[launch(4, 6, 1)],
        ranges=[nvtx(0, 10, "nccl:all_to_all"), nvtx(2, 8, "ncclGroupEnd")],
    )
    assert summarize(made, "all")[0].collectives["kind"].to_list() == ["all_to_all"]
    assert summarize(made, "all")[0].collectives["kernel_kind"].to_list() == ["send_recv"]


@pytest.mark.parametrize(
    ("kind", "ranks", "factor"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 8, 1.75),
        ("all_gather", 8, 0.875),
        ("reduce_scatter", 4, 0.75),
        ("all_to_all", 4, 0.75),
        ("broadcast", 8, 1.0),
        ("send_recv", None, 1.0),
        ("all_reduce", None, None),
        ("unknown", 8, None),
    ],
)
def test_the_bus_factor(kind, ranks, factor):
    assert bus_factor(kind, ranks) == factor


def test_sizes_are_the_whole_that_is_gathered_or_scattered():
    assert size_bytes("all_gather", 100, 800, "BFloat16") == 1600
    assert size_bytes("reduce_scatter", 800, 100, "BFloat16") == 1600
    assert size_bytes("all_reduce", 100, 100, "Float") == 400
    assert size_bytes("all_reduce", 100, 100, "NewType") is None
    assert size_bytes("all_reduce", None, None, "Float") is None


def test_unrecorded_sizes_stay_unavailable():
    result = together([rank_trace([], [collective(0, 9)], rank=0), rank_trace([], [collective(0, 9)], rank=1)])
    row = result.groups.row(0, named=True)
    assert (row["size_bytes"], row["bus_bytes_per_s"], row["own_bus_bytes_per_s"]) == (None, None, None)


def test_a_rank_without_gpu_work_has_no_times_and_does_no_harm():
    empty = replace(trace(kernels=[]), capture=replace(trace(kernels=[]).capture, source="rank1.json", rank=1))
    result = together([rank_trace([(0, 9)], rank=0), empty])
    assert result.balance.ranks["compute_ns"].to_list() == [9, 0]
    assert isinstance(result.balance.ranks, pl.DataFrame)
