"""The document model: what a table may show, and how the tree is walked."""

from __future__ import annotations

import polars as pl
import pytest

from tests.report import sample
from warplens.errors import SchemaError
from warplens.profile.columns import KERNEL_NAME
from warplens.report.document import Table


def test_a_table_that_shows_a_column_it_does_not_have_is_refused():
    with pytest.raises(SchemaError, match="full_name not among"):
        Table("t", "T", (KERNEL_NAME,), pl.DataFrame({"name": ["a"]}))


def test_an_export_of_a_table_holds_full_names_and_depth_once():
    assert sample.kernel_table().keys == ["name", "full_name", "total_ns", "share", "calls", "stdev_ns"]
    assert sample.range_tree().keys == ["name", "gpu_ns", "depth"]


def test_the_limit_counts_rows_and_none_is_all():
    assert sample.kernel_table(limit=3).shown().height == 3
    assert sample.kernel_table(limit=None).shown().height == 40


def test_figures_and_tables_are_found_inside_subsections():
    document = sample.document()
    assert [table.id for table in document.tables()] == ["kernel-table", "range-table"]
    assert len(document.figures()) == len(sample.all_charts())
