"""Traces of several ranks that were merged into one file: each piece of GPU work is its own rank's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.readers.kineto_traces import event, kernel, launch, operator, written
from warplens.profile import Trace
from warplens.ranks import analyse_ranks
from warplens.readers import read

Events = list[dict[str, Any]]
LAUNCHES = 20
H100 = {"name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "computeMinor": 0, "numSms": 132}


def of_rank(length: float, process: int, device: int, late: float = 0.0) -> Events:
    """A rank's own trace: a copy and kernels of this length, of calls that are numbered from 1 on."""
    calls = [launch(late + 10.0 * at, 2, at, process) for at in range(1, LAUNCHES + 1)]
    operators = [operator("aten::mm", late + 10.0 * at - 1, 4) | {"pid": process} for at in range(1, LAUNCHES + 1)]
    place = {"device": device, "stream": 7}
    work = [kernel(late + 10.0 * at + 3, length, at, **place) | {"pid": device} for at in range(1, LAUNCHES)]
    copy = event(
        "gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", late + 10.0 * LAUNCHES + 3, 1, process=device, thread=7
    )
    return [*operators, *calls, *work, copy | {"args": place | {"correlation": LAUNCHES, "bytes": 64}}]


def labelled(events: Events, label: str) -> Events:
    """As SGLang merges ranks."""
    return [each | {"pid": f"[{label}] {each['pid']}"} for each in events]


def shifted(events: Events, rank: int) -> Events:
    """As scripts do: an offset for each rank."""
    return [each | {"pid": each["pid"] + rank * 1_000_000} for each in events]


def plain(events: Events, _: Any) -> Events:
    return events


@pytest.mark.parametrize(
    ("merge", "marks", "processes", "devices"),
    [
        (plain, (0, 1), (400, 401), (0, 1)),
        (labelled, ("TP00", "TP01"), (400, 401), (0, 1)),
        (labelled, ("TP00-DP00", "TP01-DP01"), (400, 400), (0, 0)),
        (shifted, (0, 1), (400, 401), (0, 0)),
    ],
)
def test_the_work_of_each_rank_is_what_its_own_trace_has(
    merge: Callable[[Events, Any], Events],
    marks: tuple[Any, Any],
    processes: tuple[int, int],
    devices: tuple[int, int],
    tmp_path: Path,
) -> None:
    ranks = [of_rank(1.0 + at, processes[at], devices[at], late=0.5 * at) for at in range(2)]
    properties = [H100 | {"id": number} for number in devices]
    events = [each for rank, mark in zip(ranks, marks, strict=True) for each in merge(rank, mark)]
    found = read(written(tmp_path / "merged.json", events, deviceProperties=properties))

    work = found.kernels.group_by("device").agg(
        pl.len(), (pl.col("end_ns") - pl.col("start_ns")).sum().alias("time"), pl.col("process").unique()
    )
    assert sorted(work["time"].to_list()) == [1_000 * (LAUNCHES - 1), 2_000 * (LAUNCHES - 1)]
    assert work["process"].list.len().to_list() == [1, 1]
    assert work["process"].explode().n_unique() == 2
    joined = found.kernels.join(found.api_calls, on=["process", "correlation"])
    assert joined.height == found.kernels.height
    assert ((joined["start_ns"] - joined["start_ns_right"]) == 3_000).all()
    assert found.copies["device"].n_unique() == 2
    assert found.ranges["process"].n_unique() == 2
    assert sorted(device.ordinal for device in found.capture.devices) == sorted(work["device"].to_list())
    codes = {note.code for note in found.capture.notes}
    assert "merged-traces" in codes
    assert "lost-gpu-work" not in codes


def test_where_the_clock_contradicts_the_order_nobody_is_said_to_have_issued_it(tmp_path: Path) -> None:
    first, second = of_rank(1.0, 400, 0), of_rank(1.0, 401, 1, late=10_000.0)
    of_host = ("cpu_op", "cuda_runtime")
    exchanged = [
        *(each for each in second if each["cat"] in of_host),
        *(each for each in first if each["cat"] in of_host),
        *(each for each in [*first, *second] if each["cat"] not in of_host),
    ]
    found = read(written(tmp_path / "merged.json", exchanged))
    notes = {note.code: note for note in found.capture.notes}
    assert notes["merged-traces"].level.value == "blocking"
    assert "lost-gpu-work" not in notes


def test_processes_with_ids_of_their_own_are_told_by_these(tmp_path: Path) -> None:
    """One trace of a program whose two processes share a GPU: no id occurs twice."""
    other = [each | {"args": each["args"] | {"correlation": 1_000 + number}} if each["cat"] == "cuda_runtime" else each
             for number, each in enumerate(of_rank(1.0, 401, 0))]  # fmt: skip
    found: Trace = read(written(tmp_path / "one.json", [*of_rank(1.0, 400, 0), *other]))
    assert "merged-traces" not in {note.code for note in found.capture.notes}
    assert found.kernels["process"].unique().to_list() == [400]


def test_of_a_folder_with_ranks_and_their_merged_trace_the_ranks_are_taken(tmp_path: Path) -> None:
    ranks = [of_rank(1.0 + at, 400 + at, at) for at in range(2)]
    paths = [
        written(tmp_path / f"run-TP-{at}.json", rank, distributedInfo={"rank": at, "world_size": 2})
        for at, rank in enumerate(ranks)
    ]
    paths.append(written(tmp_path / "merged-run.json", [*labelled(ranks[0], "TP00"), *labelled(ranks[1], "TP01")]))
    found = analyse_ranks(paths, "all", workers=1)
    assert found.sources == ("run-TP-0.json", "run-TP-1.json")
    assert found.problems == ()
    assert found.result.ranks == (0, 1)
    assert "merged-run.json" in next(note.text for note in found.result.notes if note.code == "merged-traces")
