"""The optimisation checklist: planted faults are to mend, healthy kernels are not, the unknown is not told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import warplens
from tests.analysis import builders as b
from warplens.analysis.counters.speedoflight import OPCODES
from warplens.analysis.timeline import Timeline
from warplens.diagnosis import diagnose
from warplens.diagnosis.checklist import STATES, Answer, checklist
from warplens.profile import Device
from warplens.profile.counters import KernelCounters
from warplens.readers import read, read_counters

DATA = Path(warplens.__file__).parent / "data"
PLANTED = json.loads((DATA / "counters" / "INDEX.json").read_text())

(REPORT,) = PLANTED["reports"]
KERNELS = [(row["kernel"], row["fault"]) for row in REPORT["launches"]]

#: The item that each planted fault is one of.
ITEM = {
    "uncoalesced": "coalescing",
    "bank-conflicts": "bank conflicts",
    "divergence": "divergence",
    "small-grid": "grid",
    "occupancy": "occupancy",
}


@pytest.fixture(scope="module")
def planted() -> KernelCounters:
    return read_counters(DATA / "counters" / REPORT["file"], instances=(OPCODES,))


def answers(trace=None, counters=None) -> dict[str, Answer]:
    if trace is None:
        return {name: found for name, (_, _, found) in checklist(counters=counters).items()}
    timeline = Timeline(trace)
    window = timeline.window("all")
    listed = checklist(timeline, window, diagnose(timeline, window, counters), counters)
    return {name: found for name, (_, _, found) in listed.items()}


def only(counters: KernelCounters, kernel: str) -> KernelCounters:
    """The report with the one launch of a kernel alone."""
    at = counters.launches["name"].cast(pl.String).to_list().index(kernel)
    instances = {
        name: frame.filter(pl.col("launch") == at).with_columns(pl.col("launch") - pl.col("launch"))
        for name, frame in counters.instances.items()
    }
    launch = counters.launches[at : at + 1].with_columns(pl.col("launch") - pl.col("launch"))
    return replace(counters, launches=launch, metrics=counters.metrics[at : at + 1], instances=instances)


def of_blocks(threads: int, blocks: int) -> dict:
    return b.kernel(0, 1_000_000, "scale", grid=(blocks, 1, 1), block=(threads, 1, 1), correlation=1)


@pytest.mark.parametrize(("kernel", "fault"), [each for each in KERNELS if each[1]])
def test_a_planted_fault_is_to_mend(planted, kernel: str, fault: str) -> None:
    assert answers(counters=only(planted, kernel))[ITEM[fault]].state == "to mend"


@pytest.mark.parametrize("kernel", [kernel for kernel, fault in KERNELS if not fault])
def test_healthy_kernels_have_nothing_to_mend(planted, kernel: str) -> None:
    found = answers(counters=only(planted, kernel))

    assert [name for name, item in found.items() if item.state == "to mend"] == []
    assert found["coalescing"].state == "in order"


def test_without_counters_the_inside_of_kernels_is_not_told() -> None:
    found = answers(b.trace(kernels=[of_blocks(64, 1000)], api=[b.launch(0, 10, 1)]))

    for name in ("coalescing", "bank conflicts", "divergence", "warp primitives", "allocation in kernels"):
        assert found[name].state in ("cannot tell", "not applicable")
    assert found["coalescing"].then == "warplens collect ncu --preset memory -- python your_program.py"
    assert found["numerics"].state == found["compile flags"].state == "cannot tell"


@pytest.mark.parametrize(("threads", "state"), [(96, "in order"), (100, "to mend")])
def test_blocks_of_whole_warps_are_told_by_their_launches(threads: int, state: str) -> None:
    found = answers(b.trace(kernels=[of_blocks(threads, 1000)], api=[b.launch(0, 10, 1)]))["block size"]

    assert found.state == state
    assert found.evidence["time_in_partial_warps_share"] == (threads % 32 != 0)


SMS = {"H200": 132, "A100": 108, "T4": 40, "unknown": None}


@pytest.mark.parametrize(
    ("used", "unused", "smaller"),
    [
        (["H200"], ["A100"], None),
        (["A100"], ["H200"], "A100"),
        (["H200", "A100"], [], None),
        (["A100", "H200"], ["T4"], None),
        (["T4", "A100"], ["H200"], "A100"),  # the larger one of those that are used
        (["A100", "unknown"], ["H200"], None),
    ],
)
def test_a_larger_gpu_is_named_only_if_all_that_are_used_are_smaller(
    used: list[str], unused: list[str], smaller: str | None
) -> None:
    devices = [
        Device(ordinal=ordinal, name=f"NVIDIA {name}", sm_count=SMS[name])
        for ordinal, name in enumerate([*used, *unused])
    ]
    kernels = [{**of_blocks(64, 1000), "device": ordinal, "correlation": ordinal + 1} for ordinal in range(len(used))]
    calls = [b.launch(0, 10, ordinal + 1) for ordinal in range(len(used))]
    found = answers(b.trace(kernels=kernels, api=calls, devices=devices))["GPU"]

    assert found.state == ("to mend" if smaller else "in order")
    assert found.evidence == {"gpus_used_count": len(used), "gpus_recorded_count": len(devices)}
    if smaller:
        assert found.then == f"a larger GPU than NVIDIA {smaller} is there: choose it with CUDA_VISIBLE_DEVICES"


def test_one_stream_has_nothing_to_run_at_once() -> None:
    found = answers(b.trace(kernels=[of_blocks(64, 1000)], api=[b.launch(0, 10, 1)]))

    assert found["streams"].state == "not applicable"


@pytest.mark.parametrize(
    ("case", "state", "turns"),
    [
        ("overlapped", "in order", {}),
        ("full", "in order", {}),
        ("default-stream", "to mend", {"turns_by_default_stream_count": 75}),
        ("events", "cannot tell", {"turns_by_event_count": 75}),
    ],
)
def test_streams_that_take_turns_are_told_with_what_orders_them(case: str, state: str, turns: dict) -> None:
    """Planted on an H200 (`captures/streams.py`): 15 of 16 kernels of a step follow another stream's."""
    timeline = Timeline(read(DATA.parents[2] / "data" / "recordings" / f"streams_{case}.sqlite.xz"))
    found = checklist(timeline, timeline.window())["streams"][2]

    assert found.state == state
    assert {name: count for name, count in found.evidence.items() if name.startswith("turns_")} == turns
    assert (found.evidence["kernels_at_once_ns"] > 0) == (case in ("overlapped", "full"))


def test_calls_of_functions_are_what_an_allocation_inside_a_kernel_needs(planted) -> None:
    """Device-side `malloc` is a call of a function of the driver: a kernel without calls cannot allocate."""
    healthy = KERNELS[-1][0]
    without = only(planted, healthy)
    assert answers(counters=without)["allocation in kernels"].state == "in order"

    mix = without.instances[OPCODES]
    calling = replace(without, instances={OPCODES: mix.with_columns(key=pl.lit("CALL.REL.NOINC"))})
    found = answers(counters=calling)["allocation in kernels"]
    assert (found.state, found.evidence["kernels_that_call_functions_share"]) == ("cannot tell", 1.0)


def test_every_item_of_every_shipped_profile_has_an_answer_with_its_reason() -> None:
    for name in ("deit224_bs1_topk0.1", "lm_small_ctx256_train"):
        found = answers(read(DATA / "captures" / f"{name}.sqlite.xz"))
        assert {item.state for item in found.values()} <= set(STATES)
        for item in found.values():
            told = item.then if item.state in ("cannot tell", "to mend") else item.evidence
            assert told
    assert found["fusion"].then == "see unfused-optimizer among the findings"
