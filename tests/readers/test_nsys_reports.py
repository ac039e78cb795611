"""Reports of a kind that only nsys knows: converted by an installed one, once."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cli import test_canaries as canaries
from tests.cli.small_export import SECRET
from tests.readers.exports import Export
from tests.readers.nsys_reports import small_report
from warplens.cli.main import app
from warplens.errors import UnreadableInputError
from warplens.readers import read
from warplens.readers.nsys import conversion as nsys_rep
from warplens.readers.nsys.export import read_nsys_sqlite
from warplens.readers.opening import Input, ReadOptions
from warplens.scrub import scrub

_HEAD = b"NVIDIA Tegra Profiler Report 2024@6@2@225-246235."
REPORT = small_report(compression=b"unknown", head=_HEAD)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for nsys is a shell script")


@pytest.fixture(autouse=True)
def machine(tmp_path_factory, monkeypatch):
    """A machine without nsys, with an empty cache."""
    folder = tmp_path_factory.mktemp("machine")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("NSYS", raising=False)
    monkeypatch.delenv("WARPLENS_NSYS", raising=False)
    monkeypatch.setattr(nsys_rep, "_USUAL_PLACES", (f"{folder}/opt/*/bin/nsys",))
    monkeypatch.setattr(nsys_rep.shutil, "which", lambda _: shutil_which(folder / "bin"))
    return folder


def shutil_which(folder: Path) -> str | None:
    return str(folder / "nsys") if (folder / "nsys").exists() else None


@pytest.fixture
def report(tmp_path):
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(REPORT)
    return path


def _install(place: Path, version: str, body: str) -> Path:
    """A stand-in for nsys that answers --version and otherwise runs `body` with $out and $in set."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(
        f'#!/bin/sh\nif [ "$1" = --version ]; then echo "NVIDIA Nsight Systems version {version}-1v0"; exit 0; fi\n'
        f'echo run >> "{place}.log"\nout=$5\nin=$6\n{body}\n'
    )
    place.chmod(0o755)
    return place


def _runs(program: Path) -> int:
    log = Path(f"{program}.log")
    return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.fixture
def converting(tmp_path_factory):
    """The shell command of an nsys that succeeds."""
    export = Export()
    export.kernel(10, 20)
    content = export.write(tmp_path_factory.mktemp("export") / "content.sqlite")
    bar = 'printf "\\rProcessing events: [50%% ]" >&2; sleep 0.2; printf "\\rProcessing events: [100%% ]" >&2'
    return f'{bar}\ncp "{content}" "$out"'


def test_a_report_is_converted_once_and_keeps_its_name(machine, report, converting):
    nsys = _install(machine / "bin/nsys", "2025.1.1.0", converting)
    told: list[str] = []
    for _ in range(2):
        trace = read(report, progress=told.append)
        assert trace.kernels.height == 1
        assert trace.capture.source == "run.nsys-rep"
    assert _runs(nsys) == 1
    assert told[0] == "run.nsys-rep: its events are compressed in an unknown way"
    assert told[1:4] == [
        "run.nsys-rep: converting with nsys 2025.1.1.0",
        "run.nsys-rep: converting, 50 %",
        "run.nsys-rep: converting, 100 %",
    ]
    assert "run.nsys-rep: using its conversion from the cache" in told
    assert [entry.name for entry in report.parent.iterdir()] == ["run.nsys-rep"]


def test_the_same_content_under_another_name_is_not_converted_again(machine, report, converting):
    nsys = _install(machine / "bin/nsys", "2025.1.1.0", converting)
    read(report)
    read(report.rename(report.with_name("renamed.qdrep")))
    assert _runs(nsys) == 1


def test_other_content_or_another_nsys_converts_again(machine, report, converting):
    nsys = _install(machine / "bin/nsys", "2025.1.1.0", converting)
    read(report)
    report.write_bytes(small_report(compression=b"unknown", head=_HEAD, strings=(b"another",)))
    read(report)
    assert _runs(nsys) == 2
    _install(nsys, "2025.2.1.0", converting)
    read(report)
    assert _runs(nsys) == 3


def test_the_cache_is_private_and_holds_only_finished_conversions(machine, report, converting):
    _install(machine / "bin/nsys", "2025.1.1.0", f"{converting}\nexit 1")
    with pytest.raises(UnreadableInputError):
        read(report)
    cache = machine / "cache/warplens/nsys-rep"
    assert list(cache.iterdir()) == []
    assert cache.stat().st_mode & 0o077 == 0


def test_a_kept_conversion_holds_what_is_read_and_nothing_of_people_and_machines(machine, report, tmp_path):
    planted = canaries.nsys(tmp_path)
    _install(machine / "bin/nsys", "2025.1.1.0", f'cp "{planted}" "$out"')
    earlier = machine / "cache/warplens/nsys-rep/0123-nsys-2025.1.1.0.sqlite"
    earlier.parent.mkdir(parents=True)
    earlier.write_bytes(planted.read_bytes())  # as versions before left it

    trace, of_export = read(report), read(planted)
    (kept,) = earlier.parent.iterdir()

    words = (*canaries.UNREAD, SECRET, canaries.USER)
    assert canaries.found(planted.read_bytes(), words) == list(words)
    assert canaries.found(kept.read_bytes(), words) == []
    assert trace.kernels.equals(of_export.kernels)
    assert trace.ranges["name"].to_list() == of_export.ranges["name"].to_list()  # texts as they are
    scrub(report, tmp_path / "copy")  # which knows the user's name from a conversion of its own
    assert canaries.found((tmp_path / "copy").read_bytes(), (*words, *canaries.WRITTEN.values())) == []


def test_the_cache_is_shown_and_cleared(machine, report, converting):
    cache = machine / "cache/warplens/nsys-rep"
    assert CliRunner().invoke(app, ["cache"]).stdout.startswith("0 conversions, 0 B, kept in ")
    _install(machine / "bin/nsys", "2025.1.1.0", converting)
    read(report)
    (cache / ".converting-left").mkdir()

    assert CliRunner().invoke(app, ["cache", "show"]).stdout.startswith("2 conversions, ")
    assert CliRunner().invoke(app, ["cache", "clear"]).stdout.startswith("2 conversions, ")
    assert list(cache.iterdir()) == []


def test_what_was_used_longest_ago_leaves_a_full_cache(machine, report, converting, monkeypatch):
    _install(machine / "bin/nsys", "2025.1.1.0", converting)
    cache = machine / "cache/warplens/nsys-rep"
    cache.mkdir(parents=True, mode=0o755)
    for used, name in enumerate(("oldest", "older", "old")):
        (cache / f"{name}.sqlite").write_bytes(b"x" * 1_000_000)
        os.utime(cache / f"{name}.sqlite", (used, used))
    monkeypatch.setenv("WARPLENS_MAX_CACHE_BYTES", "2500000")
    read(report)
    left = {path.name for path in cache.iterdir()}
    assert {"older.sqlite", "old.sqlite"} < left
    assert len(left) == 3
    assert cache.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in cache.iterdir() if not path.name.startswith("old"))


def test_without_nsys_it_says_how_to_export(report):
    with pytest.raises(UnreadableInputError) as caught:
        read(report)
    assert str(caught.value) == (
        "run.nsys-rep: a report of nsys 2024.6.2, which needs an installed nsys to be converted, and none was found. "
        'Where nsys is installed: nsys export --type sqlite --output profile.sqlite "run.nsys-rep"; '
        "then give profile.sqlite"
    )


def test_without_nsys_it_points_at_the_export_beside_the_report(report):
    Export().write(report.with_suffix(".sqlite"))
    with pytest.raises(UnreadableInputError, match=r"which lies beside it: run\.sqlite"):
        read(report)


@pytest.mark.parametrize(
    ("installed", "found"),
    [
        ("2023.4.4.54", r"recorded with nsys 2024\.6\.2, which the installed nsys 2023\.4\.4\.54 is too old"),
        ("2025.1.1.0", r"nsys 2025\.1\.1\.0 could not convert it; it is damaged or was recorded incompletely\. "),
    ],
)
def test_an_nsys_that_cannot_convert_the_report_is_older_or_the_report_is_damaged(machine, report, installed, found):
    _install(machine / "bin/nsys", installed, "exit 1")
    with pytest.raises(UnreadableInputError, match=found):
        read(report)


def test_where_the_report_does_not_tell_its_version_nsys_does(machine, report):
    report.write_bytes(REPORT.replace(b"2024@6@2", b"********"))
    said = "Report was created in Nsight Systems version (2025.5.1.121-255136380782v0), newer than your current version"
    _install(machine / "bin/nsys", "2023.4.4.54", f'echo "Exportation error: {said} (2023.4.4.54)." >&2; exit 1')
    with pytest.raises(
        UnreadableInputError, match=r"recorded with nsys 2025\.5\.1, which .* 2023\.4\.4\.54 is too old"
    ):
        read(report)
    _install(machine / "bin/nsys", "2023.4.4.54", "exit 1")
    with pytest.raises(UnreadableInputError, match=r"or was recorded incompletely, or by a newer nsys\. "):
        read(report)


def test_the_newest_installed_nsys_is_used(machine, report, converting):
    old = _install(machine / "bin/nsys", "2023.4.4.54", "exit 1")
    new = _install(machine / "opt/2025/bin/nsys", "2025.1.1.0", converting)
    read(report)
    assert (_runs(old), _runs(new)) == (0, 1)


@pytest.mark.parametrize("variable", ["NSYS", "WARPLENS_NSYS"])
def test_the_one_that_the_user_names_goes_first(machine, report, converting, monkeypatch, variable):
    newer = _install(machine / "bin/nsys", "2026.1.1.0", "exit 1")
    named = _install(machine / "my/nsys", "2025.1.1.0", converting)
    monkeypatch.setenv(variable, str(named))
    read(report)
    assert (_runs(newer), _runs(named)) == (0, 1)


_NVIDIAS = os.environ.get("WARPLENS_NSYS") or os.environ.get("NSYS") or shutil.which("nsys") or ""


@pytest.mark.oracle
@pytest.mark.skipif(not Path(_NVIDIAS).is_file(), reason="nsys is neither in WARPLENS_NSYS nor on the PATH")
def test_nvidias_own_tool_converts_an_old_report(captured, monkeypatch):
    report = captured("nsys/empty_capture_old.qdrep")
    monkeypatch.setenv("NSYS", _NVIDIAS)
    siblings = sorted(report.parent.iterdir())
    capture = read_nsys_sqlite(Input(nsys_rep.converted(Input(report, report)), report), ReadOptions()).capture
    assert [note.code for note in capture.notes] == ["no-cuda-data"]
    assert [device.name for device in capture.devices] == ["NVIDIA RTX A2000 12GB"]
    assert sorted(report.parent.iterdir()) == siblings
