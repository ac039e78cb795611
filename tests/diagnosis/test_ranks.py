"""What ranks cost each other is found where it is planted: in one file of all ranks, and in a file a rank."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from tests.diagnosis.fleet import SEND_RECV, US, Fleet, found_across, run_of_files
from tests.diagnosis.machine import ADD, BF16_GEMM, MS
from tests.diagnosis.programs import judged
from warplens.analysis.ranks.balance import stragglers
from warplens.analysis.ranks.summary import rank_windows
from warplens.analysis.timeline import Timeline
from warplens.diagnosis import Finding
from warplens.diagnosis.across import RunDiagnosis, diagnose_run
from warplens.diagnosis.findings import LIMITED_BY, Headline
from warplens.diagnosis.rules.communication import UnbucketedCommunication
from warplens.diagnosis.rules.ranks import PipelineBubble, Straggler
from warplens.ranks import NotOneRunError
from warplens.report.brief import brief, limit_sentence


def training(fleet: Fleet, late: int | None = None, extra: str = "", buckets: int = 4) -> None:
    """Buckets of a product of 500 µs and a reduction of 100 µs; one rank may have something else to do before each."""
    for _ in range(buckets):
        for rank, machine in enumerate(fleet.machines):
            slow = rank == late
            if slow and extra == "host":
                with machine.range("load_batch"):
                    machine.think(2400 * US)
            if slow and extra == "more":
                with machine.range("extra_work"):
                    machine.launch(200 * US)
            with machine.range("layers"):
                machine.launch(500 * US * (7 if slow and extra == "slower" else 5) // 5, times=1)
        fleet.meet(100 * US)
    for machine in fleet.machines:
        machine.wait()


@pytest.mark.parametrize(
    ("extra", "waited_us", "says", "where"),
    [
        ("more", 800, "its GPU has 0.8 ms more work per step", "extra_work"),
        ("slower", 800, "the same kernels take 0.8 ms longer per step", "layers"),
        ("host", 7200, "its host spends", "load_batch"),
    ],
)
def test_the_late_rank_is_named_with_what_makes_it_late(extra: str, waited_us: int, says: str, where: str) -> None:
    fleet = Fleet(3).run(lambda fleet: training(fleet, 1, extra))
    for finding in (found_across(Straggler(), fleet), judged(fleet.one_file()).finding("straggler")):
        waited = finding.evidence["waited_ns_per_step"]
        assert waited == pytest.approx(waited_us * US, rel=0.1)
        told = f"Rank 1 is late and the others wait for it, {waited / 1e6:.1f} ms per step: {says}"
        assert finding.title.startswith(told)
        assert finding.where[:2] == ("rank 1", where)
        assert finding.evidence["last_share"] == pytest.approx(1, abs=0.01)
        assert finding.expected is not None
        healthy = Fleet(3).run(training).machines[0].gpu
        assert finding.expected == pytest.approx(fleet.machines[0].gpu / healthy, rel=0.05)
        assert finding.bound >= finding.expected


@pytest.mark.parametrize(
    ("late_ms", "late_steps", "steps", "waits"),
    [
        (6, (1, 4, 7, 10), 12, True),  # every third step, which may also sum more
        (6, (1, 2, 7, 10), 12, True),
        (0, (), 12, False),
        (6, (1, 4), 5, False),  # any may be the usual
    ],
)
def test_one_rank_tells_transfers_from_waiting_for_another_that_is_late_in_some_steps(
    late_ms: int, late_steps: tuple[int, ...], steps: int, waits: bool
) -> None:
    """A transfer of 500 to 800 µs, six milliseconds later in some steps."""
    fleet = Fleet(2)
    transfers = [(500 + 100 * (step % 4)) * US for step in range(steps)]
    late = [late_ms * MS * (step in late_steps) for step in range(steps)]
    for transfer, extra in zip(transfers, late, strict=True):
        with fleet.step():
            for rank, machine in enumerate(fleet.machines):
                with machine.range("forward"):
                    machine.launch(2 * MS)
                with machine.range("backward"):
                    machine.launch(4 * MS + extra * rank)
            fleet.meet(transfer)
    found = judged(fleet.files()[0]).finding("exposed-communication")
    assert ("wait for other ranks" in found.title) is waits
    assert found.remedies[0].action == ("Look for a straggler" if waits else "Overlap it with the backward pass")
    whole = steps * 6 * MS + sum(transfers) + sum(late)
    assert found.expected == pytest.approx(whole / (whole - (sum(late) if waits else sum(transfers + late))), rel=0.03)
    if waits:
        assert found.confidence == ("low" if late_steps == (1, 4, 7, 10) else "medium")
        overlapped = next(remedy for remedy in found.remedies if remedy.action.startswith("Overlap"))
        assert overlapped.gain == pytest.approx(whole / (whole - sum(transfers)), rel=0.03)


@pytest.mark.parametrize("grid", [(1056, 1, 1), (1478, 1, 1)], ids=["longer documents", "more rows"])
def test_data_that_are_dealt_out_evenly_leave_the_mean_of_the_ranks(grid: tuple[int, int, int]) -> None:
    """Attention over longer documents takes longer in the same grid; other data have other grids as well."""

    def step(fleet: Fleet) -> None:
        for _ in range(4):
            for rank, machine in enumerate(fleet.machines):
                is_late = rank == 1
                machine.launch(500 * US)
                machine.launch((700 if is_late else 300) * US, "flash_fwd_kernel", grid if is_late else (1056, 1, 1))
            fleet.meet(100 * US)
        for machine in fleet.machines:
            machine.wait()

    finding = found_across(Straggler(), Fleet(3).run(step))
    assert finding is not None
    assert "its part of the data takes 1.6 ms longer per step" in finding.title
    assert finding.remedies[0].action == "Give every rank the same work"
    # Four times 400 µs that two ranks wait for become a third of that on each of the three.
    whole = 4 * 1300
    assert finding.expected == pytest.approx(whole / (whole - 1600 * 2 / 3), rel=0.03)
    assert finding.bound == pytest.approx(whole / (whole - 1600), rel=0.03)


def test_a_host_that_is_ahead_of_its_gpu_without_the_profiler_is_not_late() -> None:
    """The host of rank 1 takes 20 µs for each kernel of 14 µs, of which most may be the profiler's."""

    def step(fleet: Fleet) -> None:
        for rank, machine in enumerate(fleet.machines):
            machine.python_ns = (18 if rank == 1 else 4) * US
            machine.launch(14 * US, times=100)
        fleet.meet(100 * US)
        for machine in fleet.machines:
            machine.wait()

    finding = found_across(Straggler(), Fleet(2).run(step))
    assert finding is not None
    assert "longer per step to issue the same work" in finding.title
    assert finding.expected_interval is not None
    low, high = finding.expected_interval
    assert low == pytest.approx(1.0, abs=0.05)
    assert high > 1.2
    assert finding.severity == "info"


def passes(fleet: Fleet, slowness: dict[int, float], transfer_us: int, *, overlaps: bool) -> None:
    """Eight products of 500 µs on each rank, times its slowness, and a reduction after each, or of all at the end."""
    for _ in range(8):
        for rank, machine in enumerate(fleet.machines):
            machine.launch(int(500 * US * slowness.get(rank, 1)))
        if overlaps:
            fleet.meet(transfer_us * US, overlaps=True)
    fleet.join()
    if not overlaps and transfer_us:
        fleet.meet(8 * transfer_us * US)
    for machine in fleet.machines:
        machine.wait()


def taken(size: int, slowness: dict[int, float], transfer_us: int, *, overlaps: bool) -> int:
    """Time of six steps."""
    fleet = Fleet(size).run(lambda fleet: passes(fleet, slowness, transfer_us, overlaps=overlaps))
    return max(machine.gpu for machine in fleet.machines)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("slow", [1.25, 1.5], ids=["mostly transfer", "mostly waiting"])
def test_waiting_for_a_late_rank_is_not_told_as_communication(size: int, slow: float) -> None:
    """In one file and in a file a rank: both remedies have the gain that they bring alone."""
    fleet = Fleet(size).run(lambda fleet: passes(fleet, {1: slow}, 150, overlaps=False))
    now, half = taken(size, {1: slow}, 150, overlaps=False), 75  # of sums in a forward pass, half can be hidden
    one_file = judged(fleet.one_file())
    for found in (one_file, a_run(fleet)):
        late, communication = found.finding("straggler"), found.finding("exposed-communication")
        assert late is not None
        assert communication is not None
        assert late.expected == pytest.approx(now / taken(size, {}, 150, overlaps=False), rel=0.03)
        assert communication.expected == pytest.approx(now / taken(size, {1: slow}, half, overlaps=False), rel=0.03)
    communication = one_file.finding("exposed-communication")
    assert communication is not None
    assert communication.title.endswith("beyond the waiting for a late rank")
    # Each rank transfers for as long; the waiting is the late rank's alone.
    assert communication.evidence["exposed_share"] == pytest.approx(8 * 150 * 6 * US / now, rel=0.1)
    assert one_file.what_if is not None
    both = next(change for change in one_file.what_if.changes if change.is_pair)
    assert both.expected == pytest.approx(now / taken(size, {}, half, overlaps=False), rel=0.05)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
@pytest.mark.parametrize(("slow", "certain"), [(1.0, False), (1.5, True)], ids=["by chance", "late rank"])
def test_a_rank_that_is_late_by_chance_takes_nothing_from_communication(seed: int, slow: float, certain: bool) -> None:
    """Of four equal ranks with steps of random lengths, one is the latest of few steps; a slow one is late in all."""
    random = np.random.default_rng(seed)

    def step(fleet: Fleet) -> None:
        for rank, machine in enumerate(fleet.machines):
            machine.launch(int(200 * US * random.uniform(0.7, 1.3) * (slow if rank == 1 else 1)), times=20)
        fleet.meet(1000 * US)

    fleet = Fleet(4).run(step, steps=8)
    for found in (judged(fleet.one_file()), a_run(fleet)):
        late, communication = found.finding("straggler"), found.finding("exposed-communication")
        assert communication is not None
        if certain:
            assert late is not None
            assert (late.severity, late.confidence) == ("warning", "high")
        else:
            assert late is None or late.confidence != "high"
            assert found.verdict == "exposed-communication"
            assert communication.severity == "warning"
    apart = communication_title(fleet).endswith("beyond the waiting for a late rank")
    assert apart == certain


def communication_title(fleet: Fleet) -> str:
    """Title of `exposed-communication` in one file."""
    found = judged(fleet.one_file()).finding("exposed-communication")
    assert found is not None
    return found.title


@pytest.mark.parametrize(
    ("slowness", "left"), [({1: 1.25}, {}), ({1: 1.3, 2: 1.15}, {2: 1.15})], ids=["one late rank", "a second one"]
)
@pytest.mark.parametrize("size", [3, 8])
def test_transfers_that_queue_behind_a_late_rank_go_away_with_it(
    size: int, slowness: dict[int, float], left: dict[int, float]
) -> None:
    fleet = Fleet(size).run(lambda fleet: passes(fleet, slowness, 300, overlaps=True))
    mended, all_mended = (
        taken(size, slowness, 300, overlaps=True) / taken(size, others, 300, overlaps=True) for others in (left, {})
    )
    for finding in (found_across(Straggler(), fleet), judged(fleet.one_file()).finding("straggler")):
        assert finding is not None
        assert finding.title.startswith("Rank 1 is late")
        assert finding.expected == pytest.approx(mended, rel=0.02)
        assert finding.bound is not None
        assert finding.bound >= 0.999 * all_mended


def test_waiting_in_turn_for_an_exchange_stays_when_it_is_overlapped() -> None:
    """What a rank receives is its next work: it waits for the sender whose work takes longer."""

    def step(fleet: Fleet) -> None:
        for turn in range(8):
            for rank, machine in enumerate(fleet.machines):
                machine.launch((40 if turn % 2 == rank else 20) * US, times=50)
            fleet.meet(500 * US, SEND_RECV)
        for machine in fleet.machines:
            machine.wait()

    fleet = Fleet(2).run(step)
    turn = 2000 + 500
    one_file = judged(fleet.one_file()).finding("exposed-communication")
    for found in (one_file, a_run(fleet).finding("exposed-communication")):
        assert found is not None
        assert found.expected == pytest.approx(turn / (turn - 500), rel=0.05)
        assert found.bound == pytest.approx(turn / (turn - 500 - 500), rel=0.3)
    assert one_file is not None
    even = next(remedy for remedy in one_file.remedies if remedy.action.startswith("Give every rank the same work"))
    assert even.gain == pytest.approx(turn / (turn - 500), rel=0.05)


def test_waiting_in_turn_is_told_as_communication() -> None:
    """No rank stands out as late, so that no other finding tells of the waiting."""

    def step(fleet: Fleet) -> None:
        for turn in range(8):
            for rank, machine in enumerate(fleet.machines):
                machine.launch((40 if turn % 2 == rank else 20) * US, times=50)
            fleet.meet(50 * US)
        for machine in fleet.machines:
            machine.wait()

    found = a_run(Fleet(2).run(step))
    assert found.finding("straggler") is None
    assert found.run.result.waits.ranks["exposed_wait_ns"].min() > 0.15 * found.run.wall_ns
    assert found.verdict == "exposed-communication"
    assert found.findings[0].severity == "warning"


def test_a_late_rank_in_one_file_is_the_verdict() -> None:
    found = judged(Fleet(2).run(lambda fleet: training(fleet, 1, "more")).one_file())
    assert found.verdict == "straggler"
    # 200 of 800 µs a bucket, of one GPU of two.
    assert "late ranks: 12.5 % of the time of all GPUs" in found.headline
    communication = found.finding("exposed-communication")
    assert communication.evidence["exposed_ns"] < 0.25 * found.coverage.wall_ns


def test_a_rank_whose_first_step_begins_just_before_the_window_has_as_many_steps_as_the_others() -> None:
    timeline = Timeline(Fleet(2).run(training, steps=4).one_file())
    window = timeline.window()
    later = replace(window, start_ns=window.start_ns + 100 * US, steps=window.steps[1:])
    assert [len(rank.window.steps) for rank in rank_windows(timeline, later)] == [4, 4]


@pytest.mark.parametrize(("collectives", "residual_ns"), [(1, None), (4, 0)])
def test_one_collective_aligns_clocks_but_tells_nothing_of_their_agreement(
    collectives: int, residual_ns: int | None
) -> None:
    fleet = Fleet(2).run(lambda fleet: training(fleet, buckets=collectives), steps=1)
    alignment = run_of_files(fleet.files()).result.alignment
    assert alignment.residual_median_ns == alignment.residual_max_ns == residual_ns
    assert alignment.ranks["residual_median_ns"].to_list() == [residual_ns, residual_ns]
    assert alignment.warning is None or "1 collective that ranks share" in alignment.warning


def test_ranks_that_keep_pace_have_no_straggler() -> None:
    fleet = Fleet(4).run(training)
    assert found_across(Straggler(), fleet) is None
    assert judged(fleet.one_file()).finding("straggler") is None


def test_a_rank_that_is_always_last_but_costs_little_is_no_straggler() -> None:
    def step(fleet: Fleet, late_us: int) -> None:
        for _ in range(4):
            for rank, machine in enumerate(fleet.machines):
                machine.launch((500 + late_us * (rank == 1)) * US)
            fleet.meet(100 * US)
        for machine in fleet.machines:
            machine.wait()

    for late_us, late in ((3, ()), (60, (1,))):
        run = run_of_files(Fleet(4).run(lambda fleet, late_us=late_us: step(fleet, late_us)).files())
        waits = run.result.waits
        assert waits.ranks["last_share"][1] > 0.9
        assert stragglers(waits, run.result.balance) == late


@pytest.mark.parametrize(
    ("slowness", "pairs", "late"),
    [
        ({1: 1.5, 4: 1.5}, False, (1, 4)),
        ({1: 1.5, 4: 1.4}, False, (1, 4)),
        ({1: 1.5, 4: 1.1}, False, (1,)),
        ({3: 1.5, 4: 1.5, 5: 1.5}, True, (3, 4, 5)),
        ({1: 1.5, 2: 1.5, 4: 1.5, 5: 1.5}, False, ()),
    ],
    ids=["equally", "nearly", "one far more", "a node, sums in pairs", "most ranks"],
)
def test_ranks_that_are_late_together_are_named_together(
    slowness: dict[int, float], pairs: bool, late: tuple[int, ...]
) -> None:
    """Their gain is that of all going as fast as the others, by the same fleet without a slow rank."""

    def step(fleet: Fleet, slowness: dict[int, float]) -> None:
        for _ in range(8):
            for rank, machine in enumerate(fleet.machines):
                machine.launch(round(500 * slowness.get(rank, 1.0)) * US)
            for members in [(0, 3), (1, 4), (2, 5)] if pairs else [None]:
                fleet.meet(100 * US, members=members)
        for machine in fleet.machines:
            machine.wait()

    def fleet(slowness: dict[int, float]) -> Fleet:
        return Fleet(6).run(lambda fleet: step(fleet, slowness))

    slow = fleet(slowness)
    run = run_of_files(slow.files())
    assert tuple(sorted(stragglers(run.result.waits, run.result.balance))) == late
    finding = found_across(Straggler(), slow)
    if not late:
        assert finding is None
        return
    assert finding is not None
    assert sorted(finding.where[: len(late)]) == [f"rank {rank}" for rank in late]
    assert finding.evidence["late_ranks_count"] == len(late)
    assert ("1, 4" in finding.title) == (late == (1, 4))
    mended = fleet({rank: slow for rank, slow in slowness.items() if rank not in late})
    assert finding.expected == pytest.approx(
        max(m.gpu for m in slow.machines) / max(m.gpu for m in mended.machines), rel=0.08
    )
    assert finding.bound is not None
    assert finding.bound >= finding.expected


SLOW = (2, 5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("slow", [1.0, 2.0], ids=["equal", "two slow"])
def test_equal_ranks_with_steps_of_random_lengths_are_not_late_together(seed: int, slow: float) -> None:
    random = np.random.default_rng(seed)

    def step(fleet: Fleet) -> None:
        for _ in range(4):
            for rank, machine in enumerate(fleet.machines):
                machine.launch(round(500 * random.lognormal(0, 0.2) * (slow if rank in SLOW else 1)) * US)
            fleet.meet(100 * US)
        for machine in fleet.machines:
            machine.wait()

    fleet = Fleet(8).run(step)
    run = run_of_files(fleet.files())
    late = stragglers(run.result.waits, run.result.balance)
    assert tuple(sorted(late)) == (SLOW if slow > 1 else late[:1])
    finding = found_across(Straggler(), fleet)
    assert (finding is not None and finding.confidence == "high") == (slow > 1)


def gradients(fleet: Fleet, count: int, each_us: int = 12, between: str = ADD) -> None:
    """Products of 4 ms, and then each gradient reduced and scaled by itself."""
    for machine in fleet.machines:
        machine.launch(500 * US, times=8)
    for _ in range(count):
        fleet.meet(each_us * US)
        for machine in fleet.machines:
            machine.launch(2 * US, between)
    for machine in fleet.machines:
        machine.wait()


def test_gradients_that_are_reduced_one_by_one_are_unbucketed() -> None:
    fleet = Fleet(2).run(lambda fleet: gradients(fleet, 100))
    for finding in (
        found_across(UnbucketedCommunication(), fleet),
        judged(fleet.one_file()).finding("unbucketed-communication"),
        judged(fleet.files()[0]).finding("unbucketed-communication"),
    ):
        assert finding.evidence["small_collectives_per_step"] == 100
        assert finding.evidence["floor_ns"] == pytest.approx(12 * US, rel=0.05)
        assert finding.evidence["saved_of_exposed_share"] > 0.9
        assert finding.bound is not None
        mended = Fleet(2).run(lambda fleet: gradients(fleet, 1, 100))
        assert 1.1 < fleet.machines[0].gpu / mended.machines[0].gpu <= finding.bound


@pytest.mark.parametrize(
    ("count", "each_us", "between"),
    [(4, 300, ADD), (100, 12, BF16_GEMM), (100, 300, ADD)],
    ids=["few", "needed", "large"],
)
def test_collectives_that_are_few_large_or_needed_at_once_are_not(count: int, each_us: int, between: str) -> None:
    fleet = Fleet(2).run(lambda fleet: gradients(fleet, count, each_us, between))
    assert found_across(UnbucketedCommunication(), fleet) is None
    assert judged(fleet.one_file()).finding("unbucketed-communication") is None


def pipeline(fleet: Fleet, micro: int, whole_us: int = 16_000) -> None:
    """GPipe: all micro-batches forward, then all backward; a backward pass takes twice as long."""
    last = fleet.size - 1
    forward = whole_us * US // micro // 3
    for _ in range(micro):
        for rank in range(fleet.size):
            if rank:
                fleet.meet(20 * US, SEND_RECV, (rank - 1, rank))
            fleet.machines[rank].launch(forward)
    for _ in range(micro):
        for rank in range(last, -1, -1):
            if rank < last:
                fleet.meet(20 * US, SEND_RECV, (rank, rank + 1))
            fleet.machines[rank].launch(2 * forward, ADD)


@pytest.mark.parametrize(("stages", "micro"), [(2, 2), (2, 4), (4, 4), (4, 8)])
def test_the_bubble_of_a_pipeline_is_that_of_the_formula(stages: int, micro: int) -> None:
    fleet = Fleet(stages).run(lambda fleet: pipeline(fleet, micro))
    for finding in (found_across(PipelineBubble(), fleet), judged(fleet.one_file()).finding("pipeline-bubble")):
        assert finding.evidence["stages_count"] == stages
        assert finding.evidence["micro_batches_per_step"] == micro
        reference = (stages - 1) / (micro + stages - 1)
        assert finding.evidence["reference_bubble_share"] == pytest.approx(reference)
        assert finding.evidence["bubble_share"] == pytest.approx(reference, abs=0.06)
        mended = Fleet(stages).run(lambda fleet: pipeline(fleet, 2 * micro))
        assert finding.expected is not None
        assert finding.expected == pytest.approx(fleet.machines[0].gpu / mended.machines[0].gpu, rel=0.05)


@pytest.mark.parametrize("extra_us", [0, 300])
def test_a_stage_that_comes_last_by_the_schedule_is_not_late_without_more_to_do(extra_us: int) -> None:
    """In lockstep, inner stages come last at most exchanges of even work: two of them, and two in each."""

    def step(fleet: Fleet, stages: int = 4, micro: int = 4) -> None:
        for ways in (range(stages), range(stages - 1, -1, -1)):
            for turn in range(micro + stages - 1):
                busy = [rank for place, rank in enumerate(ways) if 0 <= turn - place < micro]
                for rank in busy:
                    fleet.machines[rank].launch((400 + extra_us * (rank == 1)) * US, times=2)
                for rank in busy:
                    if rank != ways[-1]:
                        fleet.meet(30 * US, SEND_RECV, members=(rank, rank + ways.step))

    diagnosis = judged(Fleet(4).run(step).one_file())
    assert diagnosis.verdict == ("straggler" if extra_us else "pipeline-bubble")
    late = diagnosis.finding("straggler")
    assert (late is not None) is bool(extra_us)


def test_a_ring_whose_exchanges_wait_alike_is_no_pipeline() -> None:
    def ring(fleet: Fleet) -> None:
        for turn in range(8):
            for rank, machine in enumerate(fleet.machines):
                machine.launch((500 + 60 * ((turn + rank) % 2)) * US)
            fleet.meet(40 * US, SEND_RECV)

    assert found_across(PipelineBubble(), Fleet(2).run(ring)) is None


def a_run(fleet: Fleet, **changed: object) -> RunDiagnosis:
    """The run of a fleet, with these fields of each rank's diagnosis replaced by the value for its rank."""
    files = fleet.files()
    run, found = run_of_files(files), dict(enumerate(map(judged, files)))
    for name, by_rank in changed.items():
        found = {rank: replace(each, **{name: by_rank[rank]}) for rank, each in found.items()}  # type: ignore[index]
    return diagnose_run(run, found)


def launching(fleet: Fleet) -> None:
    """Many small kernels, a long pause of the host, and one reduction."""
    for machine in fleet.machines:
        machine.launch(2 * US, ADD, times=200)
        with machine.range("load_batch"):
            machine.think(3000 * US)
    fleet.meet(10 * US)
    for machine in fleet.machines:
        machine.wait()


def test_a_cause_of_every_rank_names_the_ranks_whose_verdict_is_another() -> None:
    fleet = Fleet(3).run(launching)
    alone = a_run(fleet)
    unknown = Finding(
        "incomplete-profile",
        "The GPU is idle for reasons that the profile names but cannot explain",
        "info", "low", None, None, None, {"submission_share": 0.265, "dependency_share": 0.05}, (), (), "",
    )  # fmt: skip
    findings = [(unknown, *alone.ranks[0].findings), *(alone.ranks[rank].findings for rank in (1, 2))]
    found = a_run(fleet, verdict=[unknown.id, "launch-overhead", "launch-overhead"], findings=findings)
    assert found.headline.startswith("On every rank (the verdict on ranks 1, 2): ")
    assert found.headline.endswith(
        " On rank 0 the verdict is incomplete-profile, mostly work held back by the driver or another program "
        "(26.5 % of the time)."
    )
    assert "verdict" not in alone.headline
    # The brief tells the gain apart.
    limit = limit_sentence(found)
    assert "as fast without it" not in limit
    assert limit.endswith(" the driver or another program (26.5 % of the time).")


def test_a_brief_keeps_what_a_headline_says_of_other_ranks_behind_its_limit() -> None:
    found = a_run(Fleet(2).run(launching))
    verdict = found.findings[0]
    limit = Headline("launches: for 12.5 % of the time", LIMITED_BY, "about 1.14× as fast without it")
    headline = replace(limit, ranks="2 of 3 ranks (0, 1)", others=("On rank 2 the verdict is host-sync.",))
    assert str(headline) == (
        "On 2 of 3 ranks (0, 1): limited by launches: for 12.5 % of the time; about 1.14× as fast without it. "
        "On rank 2 the verdict is host-sync."
    )
    line = brief(replace(found, headline_parts=headline))[0]
    assert line.text.startswith(
        "Launches: for 12.5 % of the time (on 2 of 3 ranks (0, 1)). On rank 2 the verdict is host-sync."
    )
    assert verdict.id in line.text


def test_a_run_of_which_most_ranks_have_no_profile_is_less_certain_and_says_how_many() -> None:
    files = Fleet(2).run(launching).files()
    run, ranks = run_of_files(files), dict(enumerate(map(judged, files)))
    placing = replace(run.result.placing, world_size=8, missing=tuple(range(2, 8)))
    few = replace(run, result=replace(run.result, placing=placing))
    whole, part = diagnose_run(run, ranks), diagnose_run(few, ranks)
    less = {"high": "medium", "medium": "low", "low": "low"}
    assert [found.confidence for found in part.findings] == [less[found.confidence] for found in whole.findings]
    assert part.headline == (
        f"{whole.headline} 6 of 8 ranks have no profile here: whether the same limits them is not known."
    )


def test_waits_between_ranks_are_less_certain_where_most_collectives_were_not_matched() -> None:
    files = Fleet(3).run(lambda fleet: training(fleet, 1, "more")).files()
    run, ranks = run_of_files(files), dict(enumerate(map(judged, files)))
    matching = run.result.matching.with_columns(matched=pl.col("kernels") // 2)
    few = diagnose_run(replace(run, result=replace(run.result, matching=matching)), ranks)
    assert (diagnose_run(run, ranks).findings[0].confidence, few.findings[0].confidence) == ("high", "medium")


def test_a_graph_that_also_removes_pauses_of_the_host_says_so() -> None:
    def told(found: RunDiagnosis) -> bool:
        remedies = found.finding("launch-overhead").remedies
        graph = next(each for each in remedies if each.action.startswith("Replay the step"))
        return graph.expected.endswith("; includes pauses of host-stall, which a graph removes as well")

    fleet = Fleet(2).run(launching)
    found = a_run(fleet)
    assert not told(found)  # launches alone cost more than the graph saves
    little = [
        replace(each, evidence={**each.evidence, "idle_share": 0.02}) if each.id == "launch-overhead" else each
        for each in found.ranks[0].findings
    ]
    assert told(a_run(fleet, findings=[little, little]))
    without = [each for each in little if each.id != "host-stall"]
    assert not told(a_run(fleet, findings=[without, without]))


def test_a_file_without_communication_among_the_ranks_is_named() -> None:
    with_it, without = (
        NotOneRunError(["rank0.json", "rank1.json"], ["rank1.json"]),
        NotOneRunError(["a.json", "b.json"]),
    )
    assert str(with_it).endswith("No communication is recorded in rank1.json")
    assert "No communication" not in str(without)
