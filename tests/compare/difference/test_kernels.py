"""Kernels removed, added and changed: every launch of both sides in exactly one row, matched as a person would."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given

from tests.analysis.random_traces import GEMM, SOFTMAX, US
from tests.compare.difference.programs import Launch, any_side, program, side
from warplens.compare.matching import in_order
from warplens.compare.work import KernelChanges, kernel_changes
from warplens.profile.spelling import spelled_for_all_tools

TOPK = "at::native::sbtopk::gatherTopK"
NORM = "vectorized_layer_norm_kernel"
_LAYER = [Launch(NORM, range="attention"), Launch(GEMM, range="attention"), Launch(SOFTMAX, range="attention")]


def _compared(baseline: list[Launch], variant: list[Launch], **options: Any) -> KernelChanges:
    return kernel_changes(side(program(baseline, **options)), side(program(variant, **options)))


def _rows(changes: KernelChanges, change: str) -> list[dict[str, Any]]:
    return changes.table.filter(pl.col("change") == change).rows(named=True)


def test_an_extra_kernel_is_added_and_nothing_else_changes():
    changes = _compared(_LAYER * 3, [*_LAYER, Launch(TOPK, gpu=7 * US, host=15 * US, range="reduce"), *_LAYER, *_LAYER])
    (added,) = _rows(changes, "added")
    assert added["name"] == TOPK
    assert added["variant_range"] == "reduce"
    assert added["baseline_range"] is None
    assert (added["baseline_launches_per_step"], added["variant_launches_per_step"]) == (0, 1)
    assert added["change_ns_per_step"] == 7 * US
    assert added["variant_host_ns_per_step"] == pytest.approx(15 * US)
    before, after = changes.launches_per_step
    assert after - before == pytest.approx(1)
    assert (changes.count("kept"), changes.count("changed"), changes.count("removed")) == (9, 0, 0)


def test_one_more_launch_of_the_same_kernel_is_added_too():
    changes = _compared([Launch()] * 3, [Launch()] * 4)
    assert (changes.count("kept"), changes.count("added")) == (3, 1)


def test_what_only_the_baseline_launches_is_removed():
    changes = _compared([*_LAYER, Launch(TOPK)], _LAYER)
    (removed,) = _rows(changes, "removed")
    assert (removed["name"], removed["matched_by"], removed["variant_full_name"]) == (TOPK, None, None)
    assert removed["change_ns_per_step"] == -2 * US


def test_the_same_kernel_with_a_smaller_grid_is_changed():
    big = [Launch(GEMM, gpu=20 * US, range="mlp", grid=(14, 1, 12))]
    small = [Launch(GEMM, gpu=5 * US, range="mlp", grid=(2, 1, 12))]
    (row,) = _compared(big, small).table.rows(named=True)
    assert (row["change"], row["matched_by"]) == ("changed", "name, range")
    assert (row["baseline_grid"], row["variant_grid"]) == ("14×1×12", "2×1×12")
    assert row["baseline_block"] == "128×1×1"
    assert row["change_ns_per_step"] == -15 * US


def test_the_same_kernel_in_another_range_is_kept_and_says_so():
    (row,) = _compared([Launch(range="attention")], [Launch(range="attn")]).table.rows(named=True)
    assert (row["change"], row["matched_by"]) == ("kept", "name, shape")
    assert (row["baseline_range"], row["variant_range"]) == ("attention", "attn")


def test_another_template_of_the_same_kernel_in_the_same_range_is_changed():
    wide = [Launch(SOFTMAX, full_name=f"{SOFTMAX}<10>", range="attention")]
    narrow = [Launch(SOFTMAX, full_name=f"{SOFTMAX}<8>", range="attention")]
    (row,) = _compared(wide, narrow).table.rows(named=True)
    assert row["matched_by"] == "short name, range"


def test_another_matrix_product_between_the_same_two_kernels_takes_the_place_of_the_first():
    def around(name: str) -> list[Launch]:
        return [Launch(NORM), Launch(name, gpu=30 * US), Launch(SOFTMAX)]

    changes = _compared(around("ampere_sgemm_128x64_tn"), around("ampere_sgemm_32x128_tn"))
    (row,) = _rows(changes, "changed")
    assert row["matched_by"] == "category, order"
    assert (row["baseline_full_name"], row["variant_full_name"]) == ("ampere_sgemm_128x64_tn", "ampere_sgemm_32x128_tn")


def test_kernels_of_one_category_at_different_places_do_not_match():
    before = [Launch("ampere_sgemm_128x64_tn"), Launch(NORM), Launch(SOFTMAX)]
    after = [Launch(NORM), Launch(SOFTMAX), Launch("ampere_sgemm_32x128_tn")]
    changes = _compared(before, after)
    assert (changes.count("added"), changes.count("removed"), changes.count("changed")) == (1, 1, 0)


def test_unknown_kernels_are_not_alike_for_being_unknown():
    changes = _compared([Launch("mystery_one"), Launch(NORM)], [Launch("mystery_two"), Launch(NORM)])
    assert (changes.count("added"), changes.count("removed")) == (1, 1)


def test_layers_of_a_model_share_a_row():
    def layers(gpu: int) -> list[Launch]:
        return [Launch(range=f"block_{number}", gpu=gpu) for number in range(12)]

    (row,) = _compared(layers(9 * US), layers(4 * US)).table.rows(named=True)
    assert (row["baseline_range"], row["baseline_launches_per_step"]) == ("block_N", 12)
    assert row["change_ns_per_step"] == -12 * 5 * US


def test_two_tools_that_spell_a_name_differently_mean_the_same_kernel():
    nsys = "void at::native::reduce_kernel<(int)128, at::native::Op<(bool)0>>(T1)"
    kineto = "void at::native::reduce_kernel<128, at::native::Op<false> >(at::native::Op<false>)"
    one = side(program([Launch("reduce_kernel", full_name=nsys)]))
    other = side(program([Launch("reduce_kernel", full_name=kineto)], file_format="kineto-json"))
    (row,) = kernel_changes(one, other).table.rows(named=True)
    assert (row["change"], row["matched_by"]) == ("kept", "name, range, shape")


def test_lambdas_are_distinguished_in_both_spellings():
    nsys = (
        "void f<(int)4, void g<[lambda() (instance 3)]::operator ()() const::[lambda(float) (instance 7)]>(T1 &)>(T2)"
    )
    kineto = "void f<4, g<{lambda()#3}::operator()() const::{lambda(float)#7}>(A&)>(int, float)"
    assert spelled_for_all_tools(nsys) == spelled_for_all_tools(kineto)
    assert spelled_for_all_tools(nsys) != spelled_for_all_tools(kineto.replace("#7", "#8"))


def test_a_window_without_steps_is_compared_as_a_whole():
    profiles = [program([Launch()] * count, named=False, steps=1) for count in (2, 5)]
    changes = kernel_changes(*(side(profile, window="all") for profile in profiles))
    assert (changes.count("kept"), changes.count("added")) == (2, 3)


def test_a_launch_that_some_steps_leave_out_counts_with_its_share_of_them():
    whole = program([Launch(), Launch(TOPK)], steps=6)
    rows = np.ones(whole.kernels.height, dtype=np.bool_)
    rows[[3, 9]] = False  # the second launch of the second and of the fifth step
    partly = type(whole)(**{**vars(whole), "kernels": whole.kernels.filter(pl.Series(rows))})
    changes = kernel_changes(side(whole), side(partly))
    row = changes.table.row(by_predicate=pl.col("name") == TOPK, named=True)
    assert (row["baseline_launches_per_step"], row["variant_launches_per_step"]) == (1, pytest.approx(4 / 6))
    assert len(changes.variant.row) == 6 + 4


def test_the_samples_hold_each_kernels_time_in_each_step():
    changes = _compared(_LAYER * 2, [*_LAYER, *_LAYER, Launch(TOPK, gpu=5 * US)], steps=4)
    before, after = changes.samples()
    assert before.shape == (4, changes.table.height) == after.shape
    assert before.sum(axis=0).tolist() == changes.table["baseline_ns"].to_list()
    assert after.sum(axis=0).tolist() == changes.table["variant_ns"].to_list()
    added = changes.table["change"].to_list().index("added")
    assert before[:, added].tolist() == [0] * 4
    assert after[:, added].tolist() == [5 * US] * 4


def test_fixed_points_ascend_on_both_sides():
    left = np.array([0.0, 1, 2, 3, 4, 5])
    right = np.array([0.0, 3, 1, 2, 5, 4])
    rows = in_order(left, right)
    assert rows is not None
    assert len(rows) == 4
    assert (np.diff(left[rows]) > 0).all()
    assert (np.diff(right[rows]) > 0).all()


@given(any_side(), any_side())
def test_every_kernel_of_both_sides_is_in_exactly_one_row(baseline, variant):
    changes = kernel_changes(baseline, variant)
    for one, name in ((baseline, "baseline"), (variant, "variant")):
        kernels = one.work.filter(pl.col("kind") == "kernel")
        assert changes.table[f"{name}_launches"].sum() == kernels.height
        assert changes.table[f"{name}_ns"].sum() == (kernels["end_ns"] - kernels["start_ns"]).sum()
    samples = changes.samples()
    assert samples[0].sum() == changes.baseline.time_ns.sum()
    assert samples[1].sum() == changes.variant.time_ns.sum()


@given(any_side(), any_side())
def test_exchanging_the_sides_exchanges_added_and_removed(baseline, variant):
    there, back = kernel_changes(baseline, variant), kernel_changes(variant, baseline)
    assert there.count("added") == pytest.approx(back.count("removed"))
    assert there.count("removed") == pytest.approx(back.count("added"))
    assert there.table["change_ns_per_step"].sum() == pytest.approx(-back.table["change_ns_per_step"].sum())


@given(any_side())
def test_any_profile_and_itself_change_nothing(one):
    table = kernel_changes(one, one).table
    assert set(table["change"].to_list()) <= {"kept"}
    assert (table["change_ns_per_step"] == 0).all()
