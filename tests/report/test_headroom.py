"""The headroom as people see it: one chart from the measured step to the limit, sentences, and tables that add up."""

from __future__ import annotations

import lzma
import sqlite3
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

from warplens.analysis.headroom import GROUPS, Headroom, headrooms
from warplens.analysis.headroom.budget import NO_MODEL
from warplens.analysis.timeline import Timeline
from warplens.readers import read
from warplens.report import text as fmt
from warplens.report.document import Document, Figure, SectionOf, sections
from warplens.report.headroom import facts, groups_table, headroom_blocks, headroom_data, parts_table

PLANTED = Path(__file__).resolve().parents[2] / "data" / "planted"


@cache
def found(name: str) -> tuple[Headroom, ...]:
    trace = Timeline(read(PLANTED / name, launch_configuration=True))
    return headrooms(trace, trace.window())


def norms() -> Headroom:
    return found("written_out_norms__baseline.json.xz")[0]


def test_the_parts_on_the_page_sum_to_the_step():
    *parts, total = parts_table(norms()).rows["step_ns"].to_list()
    assert sum(parts) == total == norms().per_step(norms().duration_ns)


def test_sentences_name_the_levels_the_roofs_and_what_is_known():
    levels, limit, roofs, known, *_ = facts(norms())
    assert levels.startswith("GPU 0, one step: 4.5")
    assert levels.endswith("at the limit")
    assert "no model" not in limit
    assert "NVIDIA H200" in roofs
    assert "known for 100.0 % of the busy time" in known
    assert "work taken from another.json: that of 0.0 % of the busy time" in facts(norms(), "another.json")
    assert "work taken from x.ncu-rep: that of 0.0 % of the busy time" in facts(norms(), counters="x.ncu-rep")


def _of_limit(level: str, share: float) -> Headroom:
    """The norms with a limit of one part of no model, which is this share of a step that one other level makes up."""
    total = norms().duration_ns
    rows = [(level, "gemm", total - round(share * total)), ("limit", NO_MODEL, round(share * total))]
    schema = {"level": pl.String, "part": pl.String, "time_ns": pl.Int64}
    parts = pl.DataFrame(rows, schema, orient="row").with_columns(
        pl.lit([], dtype=pl.List(pl.String)).alias("owners"), pl.col("time_ns").alias("step_ns"),
        (pl.col("time_ns") / total).alias("share"), pl.lit("modelled").alias("how"), pl.lit("low").alias("confidence"),
    )  # fmt: skip
    return replace(norms(), parts=parts)


def test_time_without_a_model_is_no_limit_where_it_is_much_of_the_step():
    levels, limit, *_ = facts(_of_limit("roof", 0.05))
    assert levels.endswith("at the limit")
    assert "of it have no model and count as measured);" in limit

    some = _of_limit("roof", 0.4)
    levels, limit, *_ = facts(some)
    assert levels.endswith("without avoidable work → limit not known for 40.0 % of the step")
    assert limit.startswith(f"the limit is at most {fmt.duration(some.per_step(some.after('precision')))}: ")
    assert headroom_data((some,))["devices"][0]["unmodelled_share"] == pytest.approx(0.4)
    (figure,) = [block for block in headroom_blocks((some,)) if isinstance(block, Figure)]
    assert "limit at most" in figure.chart.svg(figure.alt)


def test_rows_of_one_kernel_are_told_apart_by_their_grids(tmp_path):
    """Grids as the file has them."""
    file = tmp_path / "profile.sqlite"
    file.write_bytes(lzma.decompress((PLANTED / "fp32_products__baseline.sqlite.xz").read_bytes()))
    with closing(sqlite3.connect(file)) as database:
        query = "SELECT DISTINCT gridX * gridY * gridZ FROM CUPTI_ACTIVITY_KIND_KERNEL"
        grids = {blocks for (blocks,) in database.execute(query)}
    (room,) = found("fp32_products__baseline.sqlite.xz")
    blocks = room.groups["launch_blocks"].drop_nulls()
    assert room.groups["input_shapes"].null_count() == room.groups.height
    assert blocks.len()
    assert set(blocks) <= grids
    shown = groups_table(room).rows["input_shapes"].drop_nulls()
    assert [int(text.split()[0].replace(",", "")) for text in shown] == blocks.to_list()
    assert norms().groups.filter(pl.col("known") == "shapes")["launch_blocks"].drop_nulls().is_empty()


def test_without_roofs_no_share_of_known_work_is_claimed():
    said = [*facts(replace(norms(), roofs=None, known_share=0.0))]
    assert "roofs: unknown for this GPU (--gpu names it); kernels count as measured" in said
    assert not any(sentence.startswith("work ") for sentence in said)


def test_time_without_idle_time_is_also_without_exposed_transfers():
    copied = pl.when(pl.col("level") == "idle").then(pl.lit("exposed-copies")).otherwise("part").alias("part")
    levels, *_ = facts(replace(norms(), parts=norms().parts.with_columns(copied)))
    assert " without idle time and transfers → " in levels
    assert " without idle time → " in next(facts(norms()))


@pytest.mark.parametrize(("known_share", "words"), [(1.0, "(MFU) 0.8 %"), (0.5, "(MFU) at least 0.8 %")])
def test_utilisation_by_some_of_the_products_is_a_lower_bound(known_share, words):
    some = replace(
        norms(), product_known_share=known_share, flops=1, model_flops=int(0.008 * norms().duration_ns * 989400)
    )
    assert any(words in sentence for sentence in facts(some))


def test_a_window_without_steps_and_one_step_are_named_as_such():
    trace = Timeline(read(PLANTED / "written_out_norms__baseline.json.xz", launch_configuration=True))
    (whole,) = headrooms(trace, trace.window("all"))
    table = parts_table(whole)
    assert next(facts(whole)).startswith("GPU 0, the window: ")
    assert [column.title for column in table.columns][2] == "Time"
    assert "headroom of the only step, " in parts_table(replace(norms(), steps=1)).caption


def test_the_table_of_kernels_says_that_its_times_are_of_all_steps_together():
    captions = [groups_table(replace(norms(), steps=steps)).caption for steps in (0, 1, 12)]
    assert ["together" in caption for caption in captions] == [False, False, True]
    assert "kernels of 12 steps together, " in captions[-1]


def test_a_launch_bound_decoder_is_told_what_reading_its_weights_takes():
    said = list(facts(found("lm_decode_one_token__baseline.json.xz")[0]))
    assert any("of weights per step: at least" in sentence for sentence in said)


def test_the_chart_names_what_is_worth_a_bar():
    (figure,) = [block for block in headroom_blocks((norms(),)) if isinstance(block, Figure)]
    drawn = figure.chart.svg(figure.alt)
    for text in ("measured step", "below roof: elementwise", "avoidable: passes that fusion makes one", "limit"):
        assert text in drawn
    assert "conversions of layout" not in drawn, "0.3 % of the step are not worth a bar"


def test_each_gpu_has_its_own_headroom():
    several = found("ddp_straggler-gpu.sqlite.xz")
    document = Document("", "", sections((SectionOf("headroom", "Headroom", headroom_blocks),), several))
    ids = [block.id for block in (*document.figures(), *document.tables())]
    assert len(several) == 2
    assert len(ids) == len(set(ids)) == 6
    exposed = [one.parts.filter(one.parts["part"] == "exposed-communication")["share"].sum() for one in several]
    assert max(exposed) > 0.4, "one GPU waits in collectives"
    assert min(exposed) < 0.05, "for the other"


@pytest.mark.parametrize("name", ["written_out_norms__baseline.json.xz", "ddp_straggler-gpu.sqlite.xz"])
def test_the_json_holds_parts_and_groups_of_each_gpu(name):
    devices = headroom_data(found(name))["devices"]
    assert [device["device"] for device in devices] == list(range(len(devices)))
    for device in devices:
        assert device["parts"]["rows"]["step_ns"].sum() == device["step_ns"]
        assert device["groups"]["rows"]["measured_ns"].sum() == device["after"]["idle"]


def test_rows_of_kernels_that_share_a_short_name_are_told_apart():
    full = [f"void cutlass::Kernel2<cutlass_80_simt_sgemm_{tile}_8x4_nn>(int)" for tile in ("256x128", "128x256")]
    blank = {column.name: None for column in GROUPS.columns}
    rows = [{**blank, "name": "Kernel2", "full_name": kernel, "calls": 1.0} for kernel in full]
    rows.append({**blank, "name": "aten::mm", "full_name": full[0], "calls": 1.0})
    found = SimpleNamespace(device=0, steps=0, groups=GROUPS.conform(pl.DataFrame(rows, infer_schema_length=None)))
    names = groups_table(found).rows["name"].to_list()
    assert "256x128" in names[0]
    assert "128x256" in names[1]
    assert names[2] == "aten::mm"
