"""Steps measured in turns: a machine that changes meanwhile changes all of them alike."""

from __future__ import annotations

import pytest

from warplens.workloads.samples import round_medians, summary, summary_of_rounds


def test_the_interval_is_that_of_the_rounds_not_of_repetitions_that_err_together():
    # Eight rounds of five equal repetitions: forty samples, but only eight that are independent.
    times = [1000 + 10 * round_ for round_ in (3, 1, 7, 0, 5, 2, 6, 4) for _ in range(5)]
    spread = summary_of_rounds(times, 8)
    # Of eight samples the smallest and largest enclose the median with 99.2 %; the next ones with 93.0 %, too little.
    assert (spread.low, spread.median, spread.high) == (1000, 1035, 1070)
    assert summary(times).low > spread.low
    assert spread.samples == 40


def test_times_that_do_not_divide_into_rounds_are_refused():
    with pytest.raises(ValueError, match="7 times do not divide into 2 rounds"):
        round_medians([1] * 7, 2)


def test_a_host_that_slows_down_slows_every_step(clock):
    pytest.importorskip("torch", reason="measuring needs PyTorch")
    from warplens.workloads.measurement import Turn, measure_in_turns

    def step(milliseconds):
        # From the tenth of a second on, the machine is ten times slower.
        clock.pass_ms(milliseconds * (10 if clock.now_ns > 1e8 else 1))

    turns = [Turn(lambda: step(1)), Turn(lambda: step(2))]
    shorter, longer = measure_in_turns(turns, device="cpu", rounds=12, per_round=3, warmup_steps=1)
    assert len(shorter.wall_ns) == len(longer.wall_ns) == 36
    assert set(longer.wall_ns) == {2_000_000, 20_000_000}
    ratios = [b / a for a, b in zip(round_medians(shorter.wall_ns, 12), round_medians(longer.wall_ns, 12), strict=True)]
    # Only the round in which it happens can be off.
    assert sorted(ratios)[1:-1] == [2.0] * 10


def test_a_cell_that_cannot_run_is_left_out_of_the_turns():
    pytest.importorskip("torch", reason="measuring needs PyTorch")
    from warplens.workloads.cells import run_cells_in_turns
    from warplens.workloads.settings import TokenReductionCell

    cells = [
        TokenReductionCell("tiny", 20, method="none", precision="fp32", execution="graph"),
        TokenReductionCell("tiny", 20, method="none", precision="fp32"),
        TokenReductionCell("tiny", 20, method="topk", locations=(1, 2), precision="fp32"),
    ]
    records = run_cells_in_turns("token-reduction", cells, rounds=6, per_round=2, device="cpu")
    assert [record["status"] for record in records] == ["unsupported", "measured", "measured"]
    assert [record["cell"]["method"] for record in records] == ["none", "none", "topk"]
    assert [len(record["samples"]["wall_ns"]) for record in records[1:]] == [12, 12]
    assert records[1]["rounds"] == 6
