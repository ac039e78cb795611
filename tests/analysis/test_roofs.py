"""Practical roofs: between the data sheet and what was measured, lower for small work, none for what is unknown."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from warplens.analysis.roofs import SHORTEST_NS, STATED, Roofs, Task, roofs_of
from warplens.profile import Device

H200 = Device(0, "NVIDIA H200", sm_count=132)
A100 = Device(0, "NVIDIA A100-SXM4-80GB", sm_count=108)


def roofs(device: Device = H200) -> Roofs:
    found = roofs_of(device)
    assert found is not None
    return found


def product(m: int, n: int, k: int, dtype: str = "bf16") -> Task:
    bytes_ = 2 * (m * k + k * n + m * n)
    return Task("gemm", 2.0 * m * n * k, bytes_, dtype, True, sizes={"m": m, "n": n, "k": k, "b": 1})


def passes(bytes_: float, family: str = "elementwise") -> Task:
    return Task(family, 0, bytes_, "bf16", False)


def test_a_gpu_of_which_nothing_is_known_has_no_roofs() -> None:
    assert roofs_of(None) is None
    assert roofs_of(Device(0, "something else")) is None


def test_the_measured_table_holds_for_the_very_gpu_and_factors_for_others() -> None:
    assert roofs().measured
    assert "measured on one NVIDIA H200" in roofs().source
    assert not roofs(Device(0, "NVIDIA H200 NVL")).measured, "another card with the same chip"
    assert not roofs(A100).measured
    assert "stated factors" in roofs(A100).source


@pytest.mark.parametrize("device", [H200, A100], ids=lambda device: device.name)
@pytest.mark.parametrize(
    "task",
    [product(8192, 8192, 8192), product(1, 4096, 4096), product(128, 128, 128), passes(1e3), passes(1e9),
     passes(1e9, "normalization"), passes(1e8, "softmax"), passes(1e8, "gather-scatter"),
     Task("attention", 1e12, 1e8, "bf16", True, sizes={"q": 2048, "s": 2048, "d": 128, "causal": 1}),
     Task("convolution", 1e11, 1e8, "bf16", True,
          sizes={"b": 128, "in": 256, "out": 256, "side": 14, "kernel": 3, "groups": 1})],
    ids=lambda task: f"{task.family}-{task.flops:.0e}-{task.bytes:.0e}",
)  # fmt: skip
def test_a_practical_roof_is_above_the_data_sheet_and_above_the_shortest_kernel(device: Device, task: Task) -> None:
    time, theory, large = (getattr(roofs(device), name)(task) for name in ("time_ns", "theoretical_ns", "large_ns"))
    assert time >= SHORTEST_NS
    assert time >= theory
    assert theory <= large <= time * 1.001, "as a part of larger work it takes no longer"


def test_small_products_reach_less_than_large_ones() -> None:
    rates = []
    for side in (256, 1024, 2048, 8192):
        task = product(side, side, side)
        rates.append((task.flops or 0) / (roofs().time_ns(task) or 1))
    assert rates == sorted(rates)
    assert rates[-1] * 1e9 == pytest.approx(793e12, rel=0.03), "an entry of the table itself"


def test_time_rises_with_size() -> None:
    times = [roofs().time_ns(passes(2.0**power)) or 0 for power in range(8, 34)]
    assert all(before <= after for before, after in itertools.pairwise(times))


def test_the_table_says_what_unaligned_sizes_cost() -> None:
    share = roofs().unaligned_share("bf16")
    assert share is not None
    assert 0.1 < share < 0.9
    assert roofs(A100).unaligned_share("bf16") is None


def test_products_of_the_vector_units_have_their_own_roof() -> None:
    wide = Task("gemm", 2.0 * 4096**3, 3 * 4 * 4096**2, "fp32", False, sizes={"m": 4096, "n": 4096, "k": 4096, "b": 1})
    assert (roofs().time_ns(wide) or 0) > 8 * (roofs().time_ns(product(4096, 4096, 4096)) or 0)
    rate = (wide.flops or 0) / (roofs(A100).large_ns(wide) or 1) * 1e9
    assert rate == pytest.approx(19.5e12 * STATED["vector"])


def test_attention_that_reads_a_mask_has_a_lower_roof() -> None:
    sizes = {"b": 16, "h": 16, "q": 1024, "s": 1024, "d": 64, "causal": 0, "mask": 0}
    bare = Task("attention", 4.0 * 16 * 16 * 1024 * 1024 * 64, 1e8, "bf16", True, sizes=sizes)
    masked = replace(bare, sizes={**sizes, "mask": 1})
    # Every score reads an element of the mask once: 0.54 to 0.64 of the rate was seen of cuDNN's and PyTorch's kernels.
    assert 0.5 < (roofs().time_ns(bare) or 0) / (roofs().time_ns(masked) or 1) < 0.65


def test_a_sort_is_held_against_sorts_and_not_against_the_fastest_pass_over_memory() -> None:
    by = {name: roofs().time_ns(Task("sort-topk", 0, 1e8, "fp32", operation=name)) or 0 for name in ("sort", "topk")}
    assert by["sort"] > 10 * (roofs().time_ns(passes(1e8)) or 0)
    assert by["sort"] != by["topk"]


def test_what_one_way_to_add_rows_takes_is_no_limit_of_another() -> None:
    added = Task("gather-scatter", 0, 1e9, "fp32", operation="index_add")
    assert (roofs().time_ns(added) or 0) > 2 * (roofs().large_ns(added) or 0)


def test_work_of_unknown_size_has_no_roof() -> None:
    assert roofs().time_ns(Task("gemm", None, None)) is None
