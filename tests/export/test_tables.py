from __future__ import annotations

from pathlib import Path

import orjson
import polars as pl
import pytest

from warplens.analysis.timeline import Timeline
from warplens.export.tables import trace_tables, write_tables
from warplens.readers import read

CAPTURE = next((Path(__file__).parents[2] / "src/warplens/data/captures").glob("lm_small_ctx256*.sqlite*"))


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_every_number_comes_back(form: str, tmp_path: Path) -> None:
    timeline = Timeline(read(CAPTURE))
    tables = trace_tables(timeline)
    write_tables(tables, timeline.trace.capture, tmp_path, form)
    for name, frame in tables.items():
        again = pl.read_parquet(tmp_path / f"{name}.parquet") if form == "parquet" else _csv(tmp_path / f"{name}.csv")
        for column in frame.columns:
            wanted = frame[column].cast(pl.String).to_list()
            assert again[column].cast(pl.String).to_list() == wanted, f"{name}.{column}"


def _csv(path: Path) -> pl.DataFrame:
    return pl.read_csv(path, infer_schema=False)


def test_work_names_the_range_that_issued_it(tmp_path: Path) -> None:
    work = trace_tables(Timeline(read(CAPTURE)))["work"]
    assert work.filter(pl.col("range").is_not_null() != pl.col("range_name").is_not_null()).height == 0
    assert work["range_name"].drop_nulls().len() > 0


def test_the_capture_says_where_the_tables_come_from(tmp_path: Path) -> None:
    timeline = Timeline(read(CAPTURE))
    write_tables({}, timeline.trace.capture, tmp_path, "csv")
    facts = orjson.loads((tmp_path / "capture.json").read_bytes())
    assert facts["source"] == CAPTURE.name
    assert facts["devices"][0]["name"] == "NVIDIA H200"
