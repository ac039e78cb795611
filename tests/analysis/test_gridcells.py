"""Cells of a grid from file names: recognised, or listed with the reason, never guessed."""

from __future__ import annotations

import pytest

from warplens.errors import UsageError
from warplens.studies.grid.cells import CellName, Unplaced, assign_cells, mode_of_text, parse_cell, recognise_cell


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
