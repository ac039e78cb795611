"""Two ranks on two H200 GPUs: DDP training of a language model, rank 1 slowed by some 12 ms of products a step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import warplens

__all__ = ["warplens"]

PLANTED = Path(__file__).parents[1] / "data/planted"

#: What the program planted, as it measured it itself (INDEX.json): 12 ms asked for, 13.4 ms measured.
PLANTED_MS = (10.0, 14.0)

#: NVLink of an H200: 450 GB/s in each direction.
NVLINK_BYTES_PER_S = 450e9


@pytest.fixture
def straggler(warplens):
    ranks = [PLANTED / f"ddp_straggler-gpu_rank{rank}.json.xz" for rank in (0, 1)]
    run = warplens("ranks", *ranks, "--format", "json", "--workers", "1")
    assert run.code == 0
    return json.loads(run.out)["data"]


def test_the_slowed_rank_arrives_last_in_every_collective(straggler):
    last = [row["last_rank"] for row in straggler["collectives"]["rows"]]
    assert last == [1] * len(last)
    assert len(last) >= 20


def test_the_slowed_rank_computes_longer_by_what_was_planted(straggler):
    steps = straggler["rank_steps"]["rows"]
    by_rank = {rank: {row["step"]: row["compute_ns"] for row in steps if row["rank"] == rank} for rank in (0, 1)}
    for step in by_rank[0].keys() & by_rank[1].keys():
        extra_ms = (by_rank[1][step] - by_rank[0][step]) / 1e6
        assert PLANTED_MS[0] <= extra_ms <= PLANTED_MS[1]


def test_the_other_rank_shows_the_exposed_all_reduce(straggler):
    waiting, slowed = straggler["rows"]
    assert waiting["exposed_share"] > 0.5
    assert slowed["exposed_share"] < 0.1


def test_no_all_reduce_is_faster_than_the_link(straggler):
    speeds = [row["bus_bytes_per_s"] for row in straggler["groups"]["rows"] if row["kind"] == "all_reduce"]
    assert speeds
    assert all(0 < speed < NVLINK_BYTES_PER_S for speed in speeds)


def test_the_same_run_under_nsys_names_the_same_straggler(warplens):
    run = warplens("ranks", PLANTED / "ddp_straggler-gpu.sqlite.xz", "--format", "json", "--workers", "1")
    assert run.code == 0
    rows = json.loads(run.out)["data"]["collectives"]["rows"]
    assert rows
    assert sum(row["last_rank"] == 1 for row in rows) >= 0.9 * len(rows)


@pytest.mark.parametrize(
    ("name", "verdict", "between"),
    [
        # Both ranks launch slower than their GPUs work, rank 0 more so.
        ("planted/ddp_exposed_rank{}.json.xz", "launch-overhead", "straggler"),
        ("planted/ddp_straggler-gpu_rank{}.json.xz", "straggler", "straggler"),
        # What the hosts cannot issue fast enough are the launches of these collectives.
        ("pairs/ranks/gradients_one_by_one__rank{}.pt.trace.json.gz", *2 * ("unbucketed-communication",)),
    ],
    ids=["host", "work", "collectives"],
)
def test_the_answer_on_a_run_is_of_the_run_and_not_of_its_worst_rank(name, verdict, between):
    from warplens import diagnose

    answer = diagnose([PLANTED.parent / name.format(rank) for rank in (0, 1)])
    found = answer.to_dict()
    findings = {each["id"]: each for each in found["findings"]}
    assert found["verdict"] == verdict
    assert between in findings
    # The planted work is a large product among a thousand kernels.
    assert name != "planted/ddp_straggler-gpu_rank{}.json.xz" or "more work per step" in findings[between]["title"]
    alike = "launch-overhead"
    # A run is as fast as its slowest rank. Where one is late, the others' waiting hides what launches cost them.
    of_ranks = [each["expected"] for rank in found["ranks"] for each in rank["findings"] if each["id"] == alike]
    assert len(of_ranks) == len(found["ranks"])
    assert findings[alike]["expected"] == (min(of_ranks) if between == "unbucketed-communication" else max(of_ranks))
    # A cause that the verdict is part of may bring more than it.
    also = next(line.text for line in answer.lines if line.label == "also")
    assert ("launches of the small collectives included" in also) is (verdict == "unbucketed-communication")
    # The waiting for each other is told once.
    assert "exposed-communication" not in findings
