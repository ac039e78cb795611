"""How far attention kernels are from float64, as tables and as a page, without a GPU to compute them."""

from __future__ import annotations

import polars as pl

from warplens.analysis.numerics import ATTENTION_ERRORS
from warplens.report.html import render_html
from warplens.report.measured import errors_document, errors_tables

SHAPES = "1 × 2 × 128 × 64, fp16, causal"
KERNEL = {"implementation": "flash", "shapes": SHAPES, "tokens": 128, "status": "compared", "tensor": "out"}
ROWS = pl.DataFrame(
    [
        KERNEL | {"relative": 2e-4, "formula_relative": 1.5e-4, "near_enough": True},
        KERNEL | {"tokens": 256, "tensor": "dq", "relative": 9e-3, "formula_relative": 1e-3, "near_enough": False},
        KERNEL | {"implementation": "hopper", "status": "unsupported", "reason": "needs compute capability 9.0"},
    ],
    schema=ATTENTION_ERRORS.schema,
)


def test_what_is_too_far_off_and_what_was_not_compared_is_told_apart():
    errors, ulps, lost = errors_tables(ROWS)
    assert errors.rows["near_enough"].to_list() == ["yes", "no"]
    assert ulps.rows.height == 2
    assert lost.rows["reason"].to_list() == ["needs compute capability 9.0"]
    assert len(errors_tables(ROWS.head(2))) == 2


def test_the_page_counts_the_tensors_and_draws_their_errors():
    document = errors_document(ROWS)
    assert document.lead.startswith("2 tensors were held against float64; 1 of them is further off than twice")
    assert [figure.alt for figure in document.figures()] == ["2 errors, 2.00e-04 to 0.009"]
    assert "needs compute capability 9.0" in render_html(document)
    assert errors_document(ROWS.head(1)).lead.startswith("1 tensors were held against float64; none of them")
    assert not list(errors_document(ROWS.tail(1)).figures())
