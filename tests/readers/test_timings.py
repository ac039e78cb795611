"""A program's own times from CSV files of several shapes."""

from __future__ import annotations

import pytest

from tests import shipped
from warplens.errors import UnreadableInputError
from warplens.readers.timings import TIMINGS, read_timings


@pytest.fixture
def written(tmp_path):
    def write(text, name="timings.csv", encoding="utf-8"):
        path = tmp_path / name
        path.write_text(text, encoding=encoding)
        return path

    return write


def test_one_row_a_step_gives_one_sample_a_phase(written):
    timings = read_timings(
        written(
            "model,context,mode,step,forward_s,backward_s,optimizer_s,step_s\n"
            "small,128,train,0,0.014303124,0.022970734,0.015785468,0.053716634\n"
            "small,128,forward,0,0.010755680,,,0.010755680\n"
        )
    )
    assert timings.schema == TIMINGS.schema
    assert timings.select("mode", "phase", "statistic", "index", "time_ns").rows() == [
        ("train", "forward", "sample", 0, 14_303_124),
        ("train", "backward", "sample", 0, 22_970_734),
        ("train", "optimizer", "sample", 0, 15_785_468),
        ("train", "step", "sample", 0, 53_716_634),
        ("forward", "forward", "sample", 0, 10_755_680),
        ("forward", "step", "sample", 0, 10_755_680),
    ]


def test_one_row_a_cell_gives_statistics(written):
    timings = read_timings(
        written("Model Size;Ctx;Batch Size;n;fwd_mean_ms;fwd_std_ms;bwd mean (us)\n2.7B;512;4;10;220.14;0.5;467870\n")
    )
    assert timings.select("model", "context", "batch", "phase", "statistic", "samples", "time_ns").rows() == [
        ("2.7B", 512, 4, "forward", "mean", 10, 220_140_000),
        ("2.7B", 512, 4, "forward", "deviation", 10, 500_000),
        ("2.7B", 512, 4, "backward", "mean", 10, 467_870_000),
    ]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (
            "size\tseq_len\tmode\tmean_s\nsmall\tctx128\tforward\t0.5\nsmall\t128\ttrain\t2\n",
            [(128, "forward", "forward", 500_000_000), (128, "train", "step", 2_000_000_000)],
        ),
        (  # a row of one phase holds for every kind of step
            "model_size,context_length,pass,mean_ms\nsmall,128,backward,5\nsmall,128,forward,2\n",
            [(128, None, "backward", 5_000_000), (128, "forward", "forward", 2_000_000)],
        ),
    ],
)
def test_a_time_without_a_phase_belongs_to_the_kind_of_step(written, text, rows):
    assert read_timings(written(text)).select("context", "mode", "phase", "time_ns").rows() == rows


def test_seconds_become_nanoseconds_exactly(written):
    timings = read_timings(written("model,ctx,step_s\nsmall,8,0.123456789\nsmall,8,12345678.000000001\n"))
    assert timings["time_ns"].to_list() == [123_456_789, 12_345_678_000_000_001]


@pytest.mark.parametrize("nothing", ["", "nan", "OOM", "n/a", "-"])
def test_what_was_not_measured_gives_no_row(written, nothing):
    assert read_timings(written(f"model,ctx,forward_s\nxl,1024,{nothing}\n")).height == 0


def test_other_columns_a_byte_order_mark_and_empty_lines_do_no_harm(written):
    timings = read_timings(written("model,ctx,gpu,loss,forward_s\n\nsmall,8,H200,3.2,1\n", encoding="utf-8-sig"))
    assert timings["time_ns"].to_list() == [1_000_000_000]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "no model and no context and no time with a unit"),
        ("model,forward_s\nsmall,1\n", "no context"),
        ("model,ctx,tokens\nsmall,8,1\n", "no time with a unit"),
        ("model,ctx,forward_mean\nsmall,8,1\n", "'forward_mean' is a time without a unit"),
        ("model,ctx,forward_s\nsmall,8,fast\n", "line 2, column 'forward_s': 'fast' is not a number"),
        ("model,ctx,forward_s\nsmall,8,-1\n", "'-1' is not a number"),
        ("model,ctx,forward_s\nsmall,8,1_0\n", "'1_0' is not a number"),
        ("model,ctx,forward_s\nsmall,,1\n", "line 2 has no context length"),
        ("model,ctx,fwd_mean_s\nsmall,8,1\nsmall,8,2\n", "line 3 states a second mean of forward for small at 8"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_with_the_reason(written, text, found):
    with pytest.raises(UnreadableInputError) as error:
        read_timings(written(text))
    assert str(error.value).startswith("timings.csv: ")
    assert found in str(error.value)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "profile.sqlite"
    path.write_bytes(b"SQLite format 3\x00\xff\xfe")
    with pytest.raises(UnreadableInputError, match="cannot be read as CSV"):
        read_timings(path)
    with pytest.raises(UnreadableInputError, match="there is no such file"):
        read_timings(tmp_path / "absent.csv")


@pytest.mark.parametrize(
    "text",
    [
        '[{"model": "small", "context": 128, "forward_ms": 2}]',
        '{"results": [{"config": {"model_size": "small", "ctx": 128}, "timing": {"fwd_ms": 2}}]}',
        '{"context": 128, "rows": [{"model": "small", "forward_ms": 2}]}',
    ],
)
def test_json_is_read_like_a_table(written, text):
    timings = read_timings(written(text, "part_b_results.json"))
    assert timings.select("model", "context", "phase", "time_ns").rows() == [("small", 128, "forward", 2_000_000)]


def test_our_own_benchmark_gives_its_single_times():
    """All 24 cells of `lm_grid` are taken, and their samples are those of the file."""
    from warplens.readers.measurements import read_measurements

    (path,) = shipped.files("measurements", "lm_grid.json.xz")
    timings, measured = read_timings(path), read_measurements(path)
    assert timings.select("model", "context", "mode").unique().height == measured.cells.height
    own = timings.filter((timings["model"] == "small") & (timings["context"] == 128) & (timings["mode"] == "train"))
    cell = measured.cells.with_row_index("cell").filter(
        (measured.cells["size"] == "small") & (measured.cells["context"] == 128) & (measured.cells["mode"] == "train")
    )["cell"][0]
    wall = measured.samples.filter((measured.samples["cell"] == cell) & (measured.samples["of"] == "wall"))
    assert own.filter(own["phase"] == "step")["time_ns"].to_list() == wall["time_ns"].to_list()
