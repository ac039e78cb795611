"""What a sweep report says, of measurements and of published tables, in each format."""

from __future__ import annotations

import json
import lzma
from importlib import resources
from types import SimpleNamespace

import polars as pl
import pytest

from tests import shipped
from tests.compare.surface.sweeps import record
from tests.readers.test_published import TABLE
from warplens.cli.commands.sweep import listed_profiles, sweep_report
from warplens.errors import UnreadableInputError, UsageError
from warplens.studies.sweeps.document import _thresholds
from warplens.studies.sweeps.words import interval_text, speedup_text

TOKENS = resources.files("warplens").joinpath("data/measurements/token_reduction.json.xz")
CAPTURES = resources.files("warplens").joinpath("data/captures")


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "published.csv"
    path.write_text(TABLE)
    return path


@pytest.fixture
def asked(capsysbinary):
    """Standard output and standard error of a report."""

    def run(path, baseline=None, variant=None, output=None, form="table", **options):
        sweep_report(path, baseline, variant, output=output, form=form, **options)
        out, err = capsysbinary.readouterr()
        return out.decode(), err.decode()

    return run


@pytest.fixture(scope="module")
def h200(tmp_path_factory):
    """The report on the H200's grid, written to a folder."""
    folder = tmp_path_factory.mktemp("h200")
    with resources.as_file(TOKENS) as path:
        sweep_report(path, output=folder)
    return folder


def test_the_published_paradox_is_reproduced(asked, table):
    """169.7 → 140.9 and 108.7 → 321.3 images/s; 17.57 → 5.55 and 78.52 → 24.73 GMAC."""
    found = json.loads(asked(table, form="json")[0])
    assert found["schema"] == "warplens.sweep/1"
    first, second = found["data"]["rows"]
    assert (round(first["speedup"], 3), round(second["speedup"], 3)) == (0.830, 2.956)
    assert (round(first["work_saved_share"], 3), round(second["work_saved_share"], 3)) == (0.684, 0.685)
    assert (first["low"], first["high"], first["verdict"]) == (None, None, None)


def test_the_grid_tells_where_reduction_pays(h200):
    found = json.loads((h200 / "sweep.json").read_bytes())["data"]
    rows = {(row["input_size"], row["batch"], row["execution"]): row for row in found["rows"]}
    assert len(rows) == 20
    assert rows[224, 1, "eager"]["verdict"] == "slower"
    assert rows[224, 1, "graph"]["verdict"] == "faster"
    assert rows[448, 16, "eager"]["speedup"] == pytest.approx(2.49, abs=0.01)
    for row in rows.values():
        assert row["low"] <= row["speedup"] <= row["high"]
    (eager,) = (
        line for line in found["crossovers"]["batch"] if (line["input_size"], line["execution"]) == (448, "eager")
    )
    assert 2 < eager["low"] <= eager["at"] <= eager["high"] < 4
    assert found["confounding"]["found"][0]["kind"] == "sides"
    assert found["breakeven"]["ratio_error"] < 0.1


@pytest.fixture
def small(tmp_path):
    """Two batches in six rounds; the baseline's second ran out of memory."""
    cells = [
        record({"method": method, "batch": batch}, times, rounds=6, items=batch, unit="image", launch="eager")
        for method, batch, times in (
            ("none", 1, [100, 101, 102, 101, 100, 103]), ("topk", 1, [50, 51, 50, 52, 51, 50]),
            ("none", 2, None), ("topk", 2, [60, 61, 60, 62, 61, 60]),
        )
    ]  # fmt: skip
    path = tmp_path / "small.json"
    document = {
        "schema": "warplens.measurements/1", "version": "0.1.0", "workload": "mine", "environment": {}, "plan": {},
        "measurements": cells,
    }  # fmt: skip
    path.write_text(json.dumps(document))
    return path


def test_cells_that_ran_out_of_memory_are_listed(asked, small):
    out, err = asked(small)
    assert "Cells not measured" in out
    assert "80 GiB" in out
    assert "1 cell could not be measured" in err


@pytest.mark.parametrize("index", [True, False])
def test_a_profile_of_a_cell_decides_what_bounds_it(asked, small, tmp_path, index):
    folder = tmp_path / "profiles"
    folder.mkdir()
    name = "cell.sqlite.xz" if index else "method=topk,batch=2.sqlite.xz"
    with resources.as_file(CAPTURES.joinpath("deit224_bs1_topk0.1.sqlite.xz")) as path:
        (folder / name).write_bytes(path.read_bytes())
    if index:
        (folder / "profiles.json").write_text(json.dumps({name: {"method": "topk", "batch": 2}}))
    found = json.loads(asked(small, form="json", profiles=folder)[0])["data"]["regimes"]
    (told,) = (row for row in found if (row["side"], row["batch"]) == ("variant", 2))
    assert (told["regime"], told["evidence"]) == ("launch-bound", "measured")
    assert told["because"].startswith(f"{name}: launch-overhead, ")


def test_a_profile_of_no_cell_is_left_out_and_named(asked, small, tmp_path):
    folder = tmp_path / "profiles"
    folder.mkdir()
    (folder / "method=topk,batch=64.sqlite").write_bytes(b"")
    (folder / "method=topk.sqlite").write_bytes(b"")
    _, err = asked(small, profiles=folder)
    assert "method=topk,batch=64.sqlite was left out: no cell has its settings" in err
    assert "method=topk.sqlite was left out: its settings are those of 2 cells" in err


@pytest.mark.parametrize(
    ("gpu", "factor", "said"),
    [
        ("NVIDIA A100", 1, "was left out: it is of NVIDIA H200, and the times are of NVIDIA A100"),
        ("NVIDIA H200", 1, None),
        ("NVIDIA H200", 50, "it may be of another program"),
    ],
)
def test_a_profile_of_another_gpu_or_of_other_steps_is_told(asked, tmp_path, gpu, factor, said):
    folder, name = tmp_path / "profiles", "method=topk,batch=1.sqlite.xz"
    folder.mkdir()
    (folder / name).write_bytes(CAPTURES.joinpath("deit224_bs1_topk0.1.sqlite.xz").read_bytes())
    sweep = json.loads(lzma.decompress(TOKENS.read_bytes()))
    sweep["environment"]["device"]["name"] = gpu
    of_sweep = {"input_size": 224, "execution": "eager", "attention": "explicit"}
    cells = [cell for cell in sweep["measurements"] if of_sweep.items() <= cell["cell"].items()]
    for cell in cells:
        cell["samples"]["wall_ns"] = [time * factor for time in cell["samples"]["wall_ns"]]
        times = {key: value * factor for key, value in cell["latency_ns"].items()}
        cell["latency_ns"] |= {key: times[key] for key in times.keys() - {"samples", "confidence", "outliers"}}
        cell |= {rate: cell[rate] / factor for rate in ("throughput_per_s", "sustained_per_s")}
    (tmp_path / "sweep.json").write_text(json.dumps(sweep | {"measurements": cells}))
    _, err = asked(tmp_path / "sweep.json", profiles=folder)
    cautions = [line for line in err.splitlines() if name in line]
    assert [said in line for line in cautions] == ([True] if said else [])


def test_wrong_use_is_refused_before_anything_is_computed(asked, small, tmp_path):
    with pytest.raises(UsageError, match="confidence lies between"):
        asked(small, level="5%")
    with pytest.raises(UsageError, match="there is no setting 'kind'"):
        asked(small, baseline="kind=a")
    with pytest.raises(UnreadableInputError, match="no file in it is named after a cell"):
        asked(small, profiles=tmp_path)
    with pytest.raises(UsageError, match="is read, and would be written over"):
        asked(small, output=small)


def test_of_two_figures_for_one_cell_none_is_chosen(asked, table):
    table.write_text("method,batch,latency_ms\nnone,1,10\nnone,1,10\ntopk,1,9\nnone,2,12\ntopk,2,9\n")
    assert "1.111" in asked(table)[0]  # the same figure twice is one
    table.write_text("method,batch,latency_ms\nnone,1,10\nnone,1,99\ntopk,1,9\nnone,2,12\ntopk,2,9\n")
    with pytest.raises(UsageError, match=r"the same cell \(batch=1\) with other times"):
        asked(table)


def test_a_setting_named_as_a_column_of_the_model_keeps_its_values(asked):
    """Sizes of the language models are words; the size of a threshold is a number."""
    (path,) = shipped.files("measurements", "lm_grid.json.xz")
    found = json.loads(asked(path, "mode=forward", "mode=train", form="json")[0])["data"]
    assert found["breakeven"]["groups"] == ["size"]
    assert {row["size_setting"] for row in found["breakeven"]["thresholds"]} == {row["size"] for row in found["rows"]}


def _stored(*, ambiguous):
    """The stored files whose sides can be told, or those whose cannot."""
    clear = {"token_reduction", "token_reduction_policy_fit", "token_reduction_study", "lm_grid", "lm_grid_large"}
    names = {item.name.removesuffix(".json.xz") for item in shipped.files("measurements")}
    return sorted(names - clear if ambiguous else clear)


@pytest.mark.parametrize("name", _stored(ambiguous=True))
def test_every_other_stored_file_asks_for_its_sides_in_one_line(asked, name):
    with pytest.raises(UsageError, match="which cells are") as refused:
        asked(shipped.files("measurements", f"{name}.json.xz")[0], form="json")
    assert "\n" not in str(refused.value)


def test_an_interval_that_says_nothing_is_not_given_as_numbers():
    assert interval_text(0.82, 0.85) == "0.82 to 0.85"
    assert interval_text(0.00244, 310.1) == "too few independent turns"
    assert interval_text(0.0, 1.0) == "–"


@pytest.mark.parametrize(
    ("answer", "said"),
    [("always", "the variant always pays in the range that"), ("never", "the variant pays nowhere in the range that")],
)
def test_a_model_whose_sides_do_not_cross_says_which_is_ahead(answer, said):
    found = pl.DataFrame({"answer": [answer] * 2, "total": [None, None]}, schema_overrides={"total": pl.Float64})
    (line,) = _thresholds(SimpleNamespace(size_unit="items", groups=(), thresholds=found))
    assert line.startswith(said)


@pytest.mark.parametrize(
    ("pays", "said"),
    [
        (("above", "above"), "the variant pays from 4 to 8 items on, by"),
        (("below", "below"), "the variant pays up to 4 to 8 items, by"),
        (("above", "below"), "the variant pays from 4 and up to 8 items, by"),
    ],
)
def test_a_model_says_from_where_and_up_to_where_the_variant_pays(pays, said):
    found = pl.DataFrame({"answer": "crosses", "pays": pays, "total": [4.0, 8.0], "extrapolated": False})
    (line,) = _thresholds(SimpleNamespace(size_unit="items", groups=(), thresholds=found))
    assert line.startswith(said)


def test_a_confidence_close_to_one_is_not_rounded_to_it(asked):
    with resources.as_file(TOKENS) as path:
        assert "intervals of 99.99 % for all points" in asked(path, level="0.9999")[0]


def test_a_tiny_speedup_is_not_printed_as_nothing():
    assert [speedup_text(value) for value in (0.83, 2.956, 0.00012)] == ["0.830×", "2.956×", "1.20e-04×"]


def test_repetitions_of_one_side_are_not_denied(asked, tmp_path):
    records = [
        record({"method": method, "batch": batch}, None if method == "topk" else [1_000_000, 1_010_000] * 4, rounds=4)
        for method in ("none", "topk")
        for batch in (1, 2)
    ]
    path = tmp_path / "lost.json"
    head = {"schema": "warplens.measurements/1", "version": "0", "workload": "w", "environment": {}, "plan": {}}
    path.write_text(json.dumps({**head, "measurements": records}))
    out, err = asked(path)
    assert "no repetitions" not in out + err
    assert "break-even: no model: no point has both sides" in out


def test_files_that_are_no_profiles_do_not_end_the_report(tmp_path):
    for name in ("=foo.txt", "notes.txt", "method=topk,batch=1.sqlite"):
        (tmp_path / name).touch()
    assert [path.name for path, _ in listed_profiles(tmp_path)] == ["method=topk,batch=1.sqlite"]
