"""Scrubbed counters of Nsight Compute, reports and CSV exports, and scrubbed timings and measurements."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

import warplens
import warplens.readers.ncu.scrub
from tests import shipped
from tests.readers.ncu_reports import SECRET, Report, push_pop, put, rule
from tests.shipped import OTHERS
from warplens.errors import UnreadableInputError
from warplens.readers import read_counters
from warplens.readers.measurements import read_measurements
from warplens.readers.timings import read_timings
from warplens.scrub import ScrubError, scrub
from warplens.secrets import FORBIDDEN

SHIPPED = Path(warplens.__file__).parent / "data"

USER, HOST, ADDRESS = "anneliese", "gpu-node-17", "10.20.30.40"
COMMENT, SOURCE = "comment of a person", "source of the kernel"
IDENTIFYING = (USER, HOST, ADDRESS, SECRET, "Project Zebra", "zebra_main", SOURCE, COMMENT)
OPTIONS = "--replay-mode application --clock-control none"
COMMAND = f"/opt/ncu {OPTIONS} --export /home/{USER}/out zebra_main --data /home/{USER}"


def system(name: str) -> bytes:
    return put(1, "Linux") + put(4, "x86_64") + put(5, name) + put(6, 2) + put(7, put(1, ADDRESS))


def the_report() -> Report:
    """A report with something that identifies in every field that was seen to hold such."""
    program = (
        put(1, f"/home/{USER}/zebra_main")
        + put(2, f"/home/{USER}/Project Zebra")
        + put(3, "--token zebra_main")
        + put(4, f"HOME=/home/{USER}\nHOSTNAME={HOST}\n{SECRET}")
    )
    details = (
        put(1, 4711)
        + put(3, system(HOST))
        + put(4, system(HOST))
        + put(7, "comment of a person")
        + put(8, put(1, "Nsight Compute Target") + put(2, "2025.3.1.0 (build 1)"))
        + put(9, program)
        + put(10, put(5, put(1, "zebra_main")) + put(8, "none"))
        + put(11, COMMAND)
    )
    report = Report().session(details)
    extra = (
        put(12, "comment of a person")
        + put(19, rule("SOLBottleneck", (4, f"failed in /home/{USER}/rules/x.py", (2, 12.5)), section="SpeedOfLight"))
        + put(21, push_pop("step", f"load of {USER} from /home/{USER}/Project Zebra/x.bin"))
        + put(28, put(1, put(1, f"/home/{USER}/zebra_main")))
    )
    metrics = {"gpu__time_duration.sum": 1500.0, "launch__registers_per_thread": 32}
    report.launch("gemm", metrics, extra=extra, sources=[put(1, 1) + put(2, "source of the kernel")])
    report.result(7, {"gpu__time_duration.sum": 9.0}, put(10, push_pop(f"range of {HOST}")))
    return report


@pytest.fixture
def report(tmp_path):
    path = tmp_path / "profile.ncu-rep"
    the_report().write(path)
    return path


def test_nothing_that_identifies_is_left_in_a_report(report, tmp_path):
    target = tmp_path / "shared.ncu-rep"
    original = report.read_bytes()
    scrub(report, target)
    content = target.read_bytes()
    for planted in IDENTIFYING:
        assert planted.encode() in original
        assert planted.encode() not in content


def test_counters_session_and_launches_are_the_same(report, tmp_path):
    target = tmp_path / "shared.ncu-rep"
    done = scrub(report, target)
    before, after = read_counters(report), read_counters(target)
    assert before.metrics.equals(after.metrics)
    assert before.session == after.session
    assert (after.session.replay_mode, after.session.clock_control) == ("application", "none")
    assert before.launches.drop("nvtx").equals(after.launches.drop("nvtx"))
    assert after.launches["nvtx"].to_list()[0] == ["step", "load of [removed] from [path 2]"]
    assert after.capture.tool_version == before.capture.tool_version
    assert done.tables == {"sources": 1}
    assert done.compared == 3


def test_the_command_line_keeps_the_options_that_give_numbers_meaning(report, tmp_path):
    target = tmp_path / "shared.ncu-rep"
    scrub(report, target)
    assert f"ncu {OPTIONS}".encode() in target.read_bytes()


def test_a_report_that_still_identifies_is_discarded(report, tmp_path, monkeypatch):
    monkeypatch.setattr(warplens.readers.ncu.scrub, "_PROCESS_PLAN", {1: "keep", 2: "keep", 3: "keep"})
    with pytest.raises(ScrubError, match=r"profile\.ncu-rep: .* was still in the copy"):
        scrub(report, tmp_path / "shared.ncu-rep")
    assert list(tmp_path.iterdir()) == [report]


def test_a_copy_with_other_counters_is_discarded(report, tmp_path, monkeypatch):
    plans = dict(warplens.readers.ncu.scrub._RESULT_PLANS)
    plans["kernel"] = {number: what for number, what in plans["kernel"].items() if number != 13}
    monkeypatch.setattr(warplens.readers.ncu.scrub, "_RESULT_PLANS", plans)
    with pytest.raises(ScrubError, match="does not say the same"):
        scrub(report, tmp_path / "shared.ncu-rep")


@pytest.mark.parametrize("length", [0, 3, 9, 40, 200, 700, -3])
def test_a_report_that_is_cut_off_is_refused_in_one_line(report, tmp_path, length):
    report.write_bytes(report.read_bytes()[:length])
    with pytest.raises(UnreadableInputError, match=r"^profile\.ncu-rep: [^\n]+$"):
        scrub(report, tmp_path / "shared.ncu-rep")
    assert list(tmp_path.iterdir()) == [report]


def test_the_shipped_counters_hold_nobody(tmp_path):
    for path in SHIPPED.glob("counters/*.xz"):
        scrub(path, tmp_path / "copy.ncu-rep")
        assert not FORBIDDEN.search(lzma.decompress(path.read_bytes()))


@pytest.mark.parametrize("path", sorted(OTHERS.glob("ncu/**/*.ncu-rep")) or [None], ids=lambda path: path and path.stem)
def test_reports_of_others_give_the_same_counters(path, tmp_path):
    if path is None:
        pytest.skip("no reports of others are at hand (see WARPLENS_SHARED)")
    if path.stem == "truncated":
        with pytest.raises(UnreadableInputError, match="not whole"):
            scrub(path, tmp_path / "copy.ncu-rep")
        return
    assert scrub(path, tmp_path / "copy.ncu-rep").compared == 3
    assert not FORBIDDEN.search((tmp_path / "copy.ncu-rep").read_bytes())


STATE = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
COLUMNS = (
    '"Context","Stream","Block Size","Grid Size","Device","CC","gpu__time_duration.sum","launch__registers_per_thread"'
)
LAUNCH = '"1","7","(128, 1, 1)","(4, 2, 1)","0","9.0"'
OPEN_RANGE = f'"4712 ""Default:step:none:none:none:none:str:load /home/{USER}/x"""'
CSV = f'''Epoch 1 of {USER}, loss 3.2
==PROF== Connected to process 4711 (/home/{USER}/zebra_main)
==WARNING== Unable to lock the clock of '/home/{USER}/gpu'
==ERROR== The application '/home/{USER}/zebra_main' returned an error code (1).
"ID","Process ID","Process Name","Host Name","{STATE}","Kernel Name",{COLUMNS}
"","","","","","","","","","","","","us","register/thread"
"0","4711","zebra_main","{HOST}",{OPEN_RANGE},"gemm(float *)",{LAUNCH},"1.50","32"
"1","4711","zebra_main","{HOST}","","gemm(float *)",{LAUNCH},"2,000.25","32"
Epoch 2 of {USER}
'''


@pytest.fixture
def export(tmp_path):
    path = tmp_path / "profile.csv"
    path.write_text(CSV)
    return path


def test_nothing_that_identifies_is_left_in_an_export(export, tmp_path):
    target = tmp_path / "shared.csv"
    done = scrub(export, target)
    content = target.read_text()
    for planted in (USER, HOST, "zebra_main", "Epoch", "/home"):
        assert planted in CSV
        assert planted not in content
    assert done.tables == {"Process Name": 2, "Host Name": 2}
    assert done.rows == {"line": 3}


def test_the_table_and_its_warnings_are_the_same(export, tmp_path):
    target = tmp_path / "shared.csv"
    scrub(export, target)
    before, after = read_counters(export), read_counters(target)
    assert before.metrics.equals(after.metrics)
    codes = [{note.code for note in counters.capture.notes} for counters in (before, after)]
    assert codes[0] - codes[1] == {"foreign-lines"}
    assert {"run-failed", "clocks-not-locked"} <= codes[1]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_an_export_in_another_encoding_is_scrubbed_too(export, tmp_path, encoding):
    export.write_text(CSV, encoding=encoding)
    scrub(export, tmp_path / "shared.csv")
    assert read_counters(tmp_path / "shared.csv").launches.height == 2


def test_an_export_that_still_identifies_is_discarded(export, tmp_path, monkeypatch):
    monkeypatch.setattr(warplens.readers.ncu.scrub, "_cell", lambda _cleaner, _name, cell: cell)
    with pytest.raises(ScrubError, match="was still in the copy"):
        scrub(export, tmp_path / "shared.csv")


def test_a_failed_run_has_nothing_to_share(export, tmp_path):
    export.write_text("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n")
    with pytest.raises(UnreadableInputError, match="nothing was measured"):
        scrub(export, tmp_path / "shared.csv")


@pytest.mark.parametrize("path", sorted(OTHERS.glob("ncu/*.csv")) or [None], ids=lambda path: path and path.stem)
def test_exports_of_others_give_the_same_counters(path, tmp_path):
    if path is None:
        pytest.skip("no exports of others are at hand (see WARPLENS_SHARED)")
    if path.stem == "error_only":
        pytest.skip("holds no table")
    assert scrub(path, tmp_path / "copy.csv").compared == 3


def test_timings_keep_their_numbers_and_lose_other_columns(tmp_path):
    source, target = tmp_path / "times.csv", tmp_path / "shared.csv"
    source.write_text(
        "model,context,mode,step,step_ms,notes,machine\n"
        f"small,128,train,0,12.5,run by {USER},{HOST}\nsmall,128,train,1,nan,,{HOST}\n"
    )
    scrub(source, target)
    assert target.read_text().splitlines()[0] == "model,context,mode,step,step_ms"
    assert read_timings(source).equals(read_timings(target))


def test_other_tables_of_text_are_refused(tmp_path):
    source = tmp_path / "people.csv"
    source.write_text("name,salary\nann,1\n")
    with pytest.raises(UnreadableInputError, match=r"^people\.csv: "):
        scrub(source, tmp_path / "shared.csv")
    assert list(tmp_path.iterdir()) == [source]


STORED = shipped.files("measurements", "token_reduction_methods.json.xz")[0]


@pytest.fixture
def plain(tmp_path):
    """A real file, one cell of which failed."""
    document = json.loads(lzma.decompress(STORED.read_bytes()))
    record = document["measurements"][1]
    document["measurements"][1] = {"cell": record["cell"], "status": "failed", "reason": "no such file"}
    path = tmp_path / "plain.json"
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def spoiled(plain, tmp_path):
    """The same after a machine's owner got in: new members, a command line, paths in texts."""
    document = json.loads(plain.read_text())
    document["host"] = "gpu17.example.org"
    document["command"] = "WANDB_API_KEY=abcdef0123456789 python /home/ann/train.py"
    document["environment"]["user"] = "ann"
    document["measurements"][0]["notes"] = "ask ann@example.org"
    document["measurements"][1]["reason"] = "no such file: /home/ann/data/images.bin, says ann"
    path = tmp_path / "spoiled.json"
    path.write_text(json.dumps(document))
    return path


def test_nobody_is_left_in_the_copy(spoiled, tmp_path):
    scrub(spoiled, tmp_path / "copy.json")
    text = (tmp_path / "copy.json").read_text()
    for word in ("gpu17", "ann", "WANDB", "abcdef0123456789", "example.org", "/home"):
        assert word not in text


def test_the_figures_are_the_same(plain, spoiled, tmp_path):
    report = scrub(spoiled, tmp_path / "copy.json.xz")
    before, after = read_measurements(plain), read_measurements(tmp_path / "copy.json.xz")
    assert report.compared == 3
    assert after.samples.equals(before.samples)
    assert after.cells.drop("reason").equals(before.cells.drop("reason"))
    assert after.environment == before.environment
    assert after.details == before.details


def test_our_own_command_comes_along(tmp_path):
    scrub(STORED, tmp_path / "copy.json")
    assert read_measurements(tmp_path / "copy.json").command == read_measurements(STORED).command is not None


def test_another_version_is_refused(tmp_path):
    path = tmp_path / "future.json"
    path.write_text('{"schema": "warplens.measurements/9", "measurements": []}')
    with pytest.raises(UnreadableInputError, match=r"future\.json: its schema is 'warplens\.measurements/9'"):
        scrub(path, tmp_path / "copy.json")
    assert not (tmp_path / "copy.json").exists()
