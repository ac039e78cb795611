"""Published tables of results: what is read, and what is refused rather than guessed."""

from __future__ import annotations

import json

import pytest

from warplens.errors import UnreadableInputError
from warplens.readers.published import read_published, read_sweep

#: Throughput with and without token reduction; the column of the source says GF, but the figures are MACs.
TABLE = """\
# workload: token reduction
# device: NVIDIA TITAN RTX
method,keep,input_size,batch,unit,throughput_per_s,gmacs_per_item
none,1.0,224,1,image,169.7,17.57
topk,0.1,224,1,image,140.9,5.55
none,1.0,448,8,image,108.7,78.52
topk,0.1,448,8,image,321.3,24.73
"""


@pytest.fixture
def read(tmp_path):
    def run(text, name="table.csv"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return read_sweep(path)

    return run


def test_a_rate_becomes_the_time_of_a_step(read):
    found = read(TABLE)
    assert found.settings == ("method", "keep", "input_size", "batch")
    assert (found.workload, found.environment) == ("token reduction", {"device": {"name": "NVIDIA TITAN RTX"}})
    rows = found.cells.rows(named=True)
    # 8 images at 108.7 a second are 73.6 ms.
    assert rows[2]["latency_ns"] == pytest.approx(8e9 / 108.7)
    assert [row["items"] for row in rows] == [1, 1, 8, 8]
    assert {row["unit"] for row in rows} == {"image"}


def test_macs_of_an_item_become_those_of_a_step_and_twice_as_many_flops(read):
    row = read(TABLE).cells.row(2, named=True)
    assert row["macs"] == 8 * 78_520_000_000
    assert row["flops"] == 2 * row["macs"]


def test_there_are_no_samples_and_none_are_made_up(read):
    found = read(TABLE)
    assert found.samples.height == 0
    assert found.cells["latency_low_ns"].null_count() == 4
    assert found.cells["samples"].null_count() == 4


def test_flops_stay_what_the_table_says_they_are(read):
    """A table that calls MACs FLOPs is taken at its word: nothing in it shows that it is wrong."""
    row = read(TABLE.replace("gmacs_per_item", "gflops_per_item")).cells.row(0, named=True)
    assert (row["flops"], row["macs"]) == (17_570_000_000, None)


def test_a_table_whose_flops_equal_its_macs_is_doubted(read):
    row = read("method,batch,latency_ms,macs,flops\nnone,1,5,100,100\n").cells.row(0, named=True)
    assert row["doubts"] == ["the table's FLOPs are 1 times its MACs; two are by definition"]
    row = read("method,batch,latency_ms,macs,flops\nnone,1,5,100,200\n").cells.row(0, named=True)
    assert row["doubts"] == []


@pytest.mark.parametrize("column", ["GF", "gops", "ops", "compute"])
def test_a_column_that_does_not_say_what_it_counts_is_refused(read, column):
    with pytest.raises(UnreadableInputError, match=f"{column!r} does not say whether it counts MACs or FLOPs"):
        read(TABLE.replace("gmacs_per_item", column))


@pytest.mark.parametrize(("column", "factor"), [("latency_s", 1e9), ("latency_ms", 1e6), ("latency_us", 1e3)])
def test_units_of_latencies_are_in_their_names(read, column, factor):
    assert read(f"method,{column}\nnone,1.5\n").cells["latency_ns"].to_list() == [1.5 * factor]


def test_the_same_table_as_json(read):
    rows = [{"method": "none", "batch": 2, "latency_ms": 4}, {"method": "topk", "batch": 2, "latency_ms": 2}]
    for document in (rows, {"schema": "warplens.published/1", "workload": "mine", "rows": rows}):
        found = read(json.dumps(document), "table.json")
        assert found.cells["latency_ns"].to_list() == [4e6, 2e6]
        assert found.settings == ("method", "batch")


def test_a_result_that_is_oom_is_a_cell_that_ran_out_of_memory(read):
    found = read("method,batch,throughput_per_s\nnone,64,OOM\ntopk,64,10\n")
    assert found.cells["status"].to_list() == ["out-of-memory", "measured"]


def test_numbers_and_texts_in_one_setting_are_texts(read):
    assert read("keep,latency_ms\n0.1,1\nauto,2\n").cells["keep"].to_list() == ["0.1", "auto"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no rows"),
        ("method,batch\nnone,1\n", "with a row a side and point; there are: method, batch"),
        ("method,throughput_per_s\nnone,100\n", "needs the items of a step"),
        ("method,latency_ms\nnone,-1\n", "not above zero"),
        ("method,latency_ms\nnone,\n", "neither a throughput nor a latency"),
        ("method,latency_ms\nnone\n", "not as many fields"),
        ("method,batch,latency_ms,throughput_per_s\nnone,8,10,100\n", "throughput × latency is 1, but a step has 8"),
        ("method,latency_ms,status\nnone,1,lost\n", "its status is 'lost'"),
        ("method,latency_ms,macs,gmacs\nnone,1,5,5\n", "states its macs twice"),
        ("{}", "not a list of rows"),
        ('{"schema": "other/1", "rows": []}', "not a list of rows"),
        ("[1", "not valid JSON"),
    ],
)
def test_what_cannot_be_understood_is_refused(tmp_path, text, message):
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(UnreadableInputError, match=message):
        read_published(path)


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    with pytest.raises(UnreadableInputError, match="No such file"):
        read_published(tmp_path / "none.csv")
    with pytest.raises(UnreadableInputError, match="folder"):
        read_sweep(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("method;batch;latency_ms\nnone;1;2,5\n", "semicolons separate"),
        ("method\tbatch\tlatency_ms\nnone\t1\t2.5\n", "tabs separate"),
        ("method,batch,batch,latency_ms\nnone,1,2,3\n", "two columns are named 'batch'"),
        ("method,,latency_ms\nnone,1,3\n", "column 2 has no name"),
        ("method,launch,latency_ms\nnone,a,3\n", "cannot be named 'launch'"),
        ("method,latency_ms\nnone,2.5 ms\n", "'2.5 ms', which is not a number"),
        ('method,batch,throughput_per_s\nnone,1,"1,234.5"\n', "'1,234.5', which is not a number"),
        ("method,latency_ms\nnone,1e400\n", "not a number"),
        ("method,latency_ms\nnone,1e99999999\n", "not a number"),
        ("method,latency_ms\nnone,1e30\n", "too much to be one"),
        ("method,latency_ms\nnone,1e-30\n", "close to zero"),
        ("method,latency_ms,gmacs\nnone,1,-3\n", "not above zero"),
        ("method,latency_ms,tmacs\nnone,1,99999999999\n", "operations a step, which is too much"),
        ("method,latency_ms\n" + "a" * 20_000 + ",1\n", "a field of row 1 is huge"),
        ('{"rows": [{"method": "none", "latency_ms": 1}], "sweep": {"baseline": 3}}', "no settings as baseline"),
        ('{"rows": [{"method": "none", "latency_ms": 1}], "sweep": 3}', "no settings as baseline"),
        ("method,latency_ms,GFLOPs\nnone,1,3\n", "'GFLOPs' does not say whether .* a step or of an item"),
        ("method,latency_ms,FLOPs (G)\nnone,1,3\n", "does not say whether"),
        ('{"schema": "warplens.measurements/9"}', "warplens.measurements/1 is read here. .*warplens bench"),
        ('{"schema": "warplens.measurements/1", "meas', "not valid JSON .*warplens bench"),
        ('{"schema": "warplens.measurements/1"}', r"it lacks what its schema declares \('measurements'\)"),
    ],
)
def test_what_spreadsheets_and_misprints_make_of_a_table_is_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(UnreadableInputError, match=message) as refused:
        read_sweep(path)
    assert "\n" not in str(refused.value)


def test_a_table_in_another_encoding_says_which_one_is_read(tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes(TABLE.encode("utf-16"))
    with pytest.raises(UnreadableInputError, match="not a text in UTF-8"):
        read_sweep(path)


def test_settings_of_any_kind_are_kept_as_texts(read):
    rows = [{"method": "none", "flag": True, "seed": 10**19}, {"method": "topk", "flag": 1, "seed": 1}]
    found = read(json.dumps([{**row, "latency_ms": 1, "unit": 3} for row in rows])).cells
    assert found["flag"].to_list() == ["True", "1"]
    assert found["seed"].to_list() == [str(10**19), "1"]


def test_a_setting_that_only_python_reads_as_a_number_stays_a_text(read):
    found = read("method,batch,latency_ms\nnone,1,2\n7_3,1,2\n73,1,2\n٧٣,1,2\n").cells
    assert found["method"].to_list() == ["none", "7_3", "73", "٧٣"]


@pytest.mark.parametrize(
    ("text", "settings", "latency_ns"),
    [
        ("batch_size,model,tp\n8,a,4\n8,b,2\n", ("batch", "model"), [2e9, 4e9]),
        ("bs,images/s\n1,100\n2,100\n", ("batch",), [1e7, 2e7]),
        ("kernel,mean_time_ms,std_time_ms,min_time_ms\nflash,2,0.1,1.8\n", ("kernel",), [2e6]),
        ("kernel,Mean (us),Median (us)\nflash,3,2\n", ("kernel",), [2e3]),
        ('{"results": {"flash": [{"seq_len": 128, "mean_time_ms": 2}]}}', ("name", "seq_len"), [2e6]),
        ('{"a": {"128": {"mean_time_ms": 2}}, "b": {"128": {"mean_time_ms": 4}}}', ("name", "size"), [2e6, 4e6]),
        ('[{"config": {"seq_len": 128, "batch_size": 2}, "timing": {"mean_ms": 2, "std_ms": 1}}]', ("seq_len", "batch"),
         [2e6]),
    ],
)  # fmt: skip
def test_titles_and_nesting_of_files_that_people_have(read, text, settings, latency_ns):
    found = read(text, "benchmark_results.json")
    assert found.settings == settings
    assert found.cells["latency_ns"].to_list() == pytest.approx(latency_ns)


def test_what_was_renamed_and_left_out_is_said(read):
    found = read("batch_size,tp,std_ms\n8,4,0.1\n")
    assert found.plan["read_as"] == ["batch_size as batch", "tp as throughput_per_s", "std_ms left out"]


def test_a_second_title_of_one_figure_is_no_setting(read):
    found = read("method,throughput_per_s,fps,batch\nnone,3,3,1\n")
    assert (found.settings, found.plan["read_as"]) == (("method", "batch"), ["fps left out"])
