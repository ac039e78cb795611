"""Cells of a grid from file names: recognised, or listed with the reason, never guessed.

Modelled work against figures that were worked out by hand or printed elsewhere.
"""

from __future__ import annotations

import pytest

from warplens.errors import UsageError
from warplens.studies.grid.cells import (
    MODEL_SIZES,
    CellName,
    Unplaced,
    assign_cells,
    attention_matmul_flops,
    canonical_model,
    flop_ratio,
    mode_of_text,
    model_rank,
    model_size,
    parse_cell,
    recognise_cell,
    softmax_flops,
)


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("small_ctx512.sqlite", CellName("small", 512)),
        ("small_forward_ctx512.nsys-rep", CellName("small", 512, "forward")),
        ("lm_small_ctx512_train.sqlite.zst", CellName("small", 512, "train")),
        ("medium_training_step_1024.sqlite", CellName("medium", 1024, "train")),
        ("LM-Large-seq512-fwd_bwd.sqlite.xz", CellName("large", 512, "forward+backward")),
        ("2p7b_ctx128_full.nsys-rep", CellName("2.7B", 128, "train")),
        ("2_7b_ctx_128.sqlite", CellName("2.7B", 128)),
        ("2.7B_inference_256.sqlite", CellName("2.7B", 256, "forward")),
        ("10B_ctx256_annotated.sqlite", CellName("10B", 256)),
        ("folder/xl_seq_len_64_bs8.sqlite", CellName("xl", 64, None, 8)),
        ("small_512_steps_32_run_16.sqlite", CellName("small", 512)),
        ("h100_small_512_20250601.sqlite", CellName("small", 512)),
    ],
)
def test_a_file_name_tells_its_cell(name, cell):
    assert recognise_cell(name) == cell


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("small_forward_annotated.nsys-rep", "tells no context length"),
        ("ctx512.sqlite", "tells no model"),
        ("profile.sqlite", "tells no model and no context length"),
        ("large_vs_small_512.sqlite", "more than one model (large, small)"),
        ("xl_512_1024.sqlite", "more than one context length (1024, 512)"),
        ("small_ctx512_forward_and_train.sqlite", "more than one mode (forward, train)"),
        ("7b_ctx512.sqlite", "tells no model"),
        ("small_2025.sqlite", "tells no context length"),
    ],
)
def test_what_a_name_does_not_tell_is_not_guessed(name, reason):
    found = recognise_cell(name)
    assert isinstance(found, Unplaced)
    assert found.source == name
    assert reason in found.reason
    assert "--cell" in found.reason


def test_a_stated_cell_may_name_any_model():
    assert parse_cell("run7=small,512,train") == ("run7", CellName("small", 512, "train"))
    assert parse_cell("a=b.sqlite=2P7B,ctx1024") == ("a=b.sqlite", CellName("2.7B", 1024))
    assert parse_cell("x=my model,8,fwd") == ("x", CellName("my model", 8, "forward"))


@pytest.mark.parametrize(
    "text", ["small,512", "=small,512", "x=small", "x=small,many", "x=small,512,sometimes", "x=,512"]
)
def test_a_badly_stated_cell_is_refused(text):
    with pytest.raises(UsageError, match="cell"):
        parse_cell(text)


def test_stated_cells_win_over_names_and_fit_with_or_without_suffix():
    stated = {"small_ctx512": CellName("large", 256), "run7.sqlite": CellName("xl", 128)}
    cells, unplaced = assign_cells(["a/small_ctx512.sqlite", "b/run7.sqlite", "other.sqlite"], stated)
    assert cells == {"a/small_ctx512.sqlite": CellName("large", 256), "b/run7.sqlite": CellName("xl", 128)}
    assert [item.source for item in unplaced] == ["other.sqlite"]


def test_a_stated_name_that_no_file_has_is_refused():
    with pytest.raises(UsageError, match=r"'run8'.*run7"):
        assign_cells(["run7.sqlite"], {"run8": CellName("xl", 128)})


def test_kinds_of_steps():
    assert mode_of_text("FWD") == "forward"
    assert mode_of_text("forward+backward") == "forward+backward"
    assert mode_of_text("fwd_bwd_opt") == "train"
    assert mode_of_text("forward train") is None
    assert mode_of_text("") is None


@pytest.mark.parametrize(
    ("name", "parameters", "teraflop"),
    [
        ("small", 128_625_408, (0.126, 0.257, 0.534, 1.145)),
        ("medium", 423_183_360, (0.429, 0.871, 1.794, 3.795)),
        ("large", 969_411_840, (0.992, 2.007, 4.111, 8.609)),
        ("xl", 1_998_235_200, (2.050, 4.140, 8.441, 17.526)),
        ("2.7B", 3_406_809_600, (3.484, 7.010, 14.192, 29.072)),
    ],
)
def test_the_five_sizes_have_the_parameters_and_the_flops_of_the_assignment(name, parameters, teraflop):
    size = model_size(name)
    assert size.parameters == parameters
    assert tuple(round(2 * size.forward_macs(4, context) / 1e12, 3) for context in (128, 256, 512, 1024)) == teraflop


def test_ten_b_really_has_almost_thirteen_billion():
    assert round(model_size("10B").parameters / 1e9, 2) == 12.83


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
    assert model_size("xl").d_model == 1600
    assert model_size("small", layers=11) is None


def test_models_sort_by_size_and_unknown_ones_come_last():
    assert sorted(["xl", "tiny", "2.7B", "10B", "small", "large", "medium"], key=model_rank) == [
        "small", "medium", "large", "xl", "2.7B", "10B", "tiny",
    ]  # fmt: skip


def test_every_width_divides_into_heads():
    assert all(size.d_head * size.heads == size.d_model for sizes in MODEL_SIZES.values() for size in sizes)


def test_small_has_111_tensors():
    assert model_size("small").parameter_tensors == 9 * 12 + 3 == 111
