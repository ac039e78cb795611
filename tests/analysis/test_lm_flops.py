"""Modelled work against figures that were worked out by hand or printed elsewhere."""

from __future__ import annotations

import pytest

from warplens.studies.grid.kernels import (
    MODEL_SIZES,
    attention_matmul_flops,
    canonical_model,
    flop_ratio,
    forward_flops,
    model_rank,
    model_size,
    softmax_flops,
)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("small", 128_625_408),
        ("medium", 423_183_360),
        ("large", 969_411_840),
        ("xl", 1_998_235_200),
        ("2.7B", 3_406_809_600),
    ],
)
def test_the_five_sizes_have_the_parameters_of_the_assignment(name, parameters):
    assert model_size(name).parameters == parameters


def test_ten_b_really_has_almost_thirteen_billion():
    assert round(model_size("10B").parameters / 1e9, 2) == 12.83


@pytest.mark.parametrize(
    ("name", "teraflop"),
    [
        ("small", (0.126, 0.257, 0.534, 1.145)),
        ("medium", (0.429, 0.871, 1.794, 3.795)),
        ("large", (0.992, 2.007, 4.111, 8.609)),
        ("xl", (2.050, 4.140, 8.441, 17.526)),
        ("2.7B", (3.484, 7.010, 14.192, 29.072)),
    ],
)
def test_forward_flops_at_batch_four(name, teraflop):
    contexts = (128, 256, 512, 1024)
    assert tuple(round(forward_flops(model_size(name), 4, s) / 1e12, 3) for s in contexts) == teraflop


def test_one_attention_product_counts_flops_not_multiply_accumulates():
    # small, context 512, batch 4: 4 · 12 · 512² · 64 = 805,306,368 multiply-accumulates
    assert attention_matmul_flops(4, 12, 512, 64) == 2 * 805_306_368 == 1_610_612_736


def test_softmax_has_five_flops_a_score():
    assert softmax_flops(4, 12, 512) == 62_914_560


def test_both_products_have_51_2_times_the_flops_of_the_softmax_with_heads_64_wide():
    assert flop_ratio(64) == 51.2
    assert 2 * attention_matmul_flops(4, 12, 512, 64) / softmax_flops(4, 12, 512) == 51.2
    assert flop_ratio(80) == 64.0


@pytest.mark.parametrize("text", ["2.7B", "2.7b", "2p7b", "2_7b", "2-7B"])
def test_spellings_of_the_largest_model(text):
    assert canonical_model(text) == "2.7B"


def test_other_texts_are_no_model():
    assert canonical_model("XL") == "xl"
    assert canonical_model("tiny") is None
    assert canonical_model("7b") is None


def test_the_counted_layers_tell_the_editions_of_xl_apart():
    assert model_size("xl", layers=48).d_model == 1600
    assert model_size("xl", layers=32).d_model == 2560
    assert model_size("xl").edition == "spring 2025"
    assert model_size("small", layers=11) is None


def test_models_sort_by_size_and_unknown_ones_come_last():
    assert sorted(["xl", "tiny", "2.7B", "10B", "small", "large", "medium"], key=model_rank) == [
        "small", "medium", "large", "xl", "2.7B", "10B", "tiny",
    ]  # fmt: skip


def test_every_width_divides_into_heads():
    assert all(size.d_head * size.heads == size.d_model for size in MODEL_SIZES)


def test_small_has_111_tensors():
    assert model_size("small").parameter_tensors == 9 * 12 + 3 == 111
