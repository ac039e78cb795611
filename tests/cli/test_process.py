"""Every way a run can end: an exit code, one line on standard error at most, no traceback unless asked for."""

from __future__ import annotations

import csv
import errno
import gzip
import io
import itertools
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import typer

from tests.cli.conftest import in_python
from tests.cli.small_export import write_export
from tests.tiers import thinned
from warplens.cli.process import DEFECT, DONE, GATE_FAILED, INTERRUPTED, TERMINATED, UNUSABLE, guarded
from warplens.errors import UsageError

#: A device that has no room for anything.
FULL = Path("/dev/full")


def failing(error: BaseException) -> Callable[..., None]:
    def run(**_: object) -> None:
        raise error

    return run


def subprocess_arguments(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "warplens", *map(str, arguments)]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("there is no range 'x'"), UNUSABLE),
        (typer.BadParameter("'x' is not a number"), UNUSABLE),
        (PermissionError(errno.EACCES, "Permission denied", "/home/ada/report"), UNUSABLE),
        (MemoryError(), UNUSABLE),
        (KeyboardInterrupt(), INTERRUPTED),
        (typer.Abort(), INTERRUPTED),
        (ZeroDivisionError("division by zero"), DEFECT),
        (KeyError("two\nlines"), DEFECT),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_a_failure_is_one_line_and_an_exit_code(error, code, capsys):
    assert guarded(failing(error), debug=False) == code

    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1


def test_success_and_a_failed_gate_say_nothing(capsys):
    assert guarded(lambda: None, debug=False) == DONE
    assert guarded(lambda: GATE_FAILED, debug=False) == GATE_FAILED
    assert capsys.readouterr() == ("", "")


def test_debug_shows_where_it_failed(capsys):
    assert guarded(failing(ZeroDivisionError("division by zero")), debug=True) == DEFECT

    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert shown.splitlines()[-1].startswith("error: ZeroDivisionError: division by zero")


def test_a_path_in_an_error_is_named_without_the_folders_above_it(capsys):
    guarded(failing(PermissionError(errno.EACCES, "Permission denied", "/home/ada/report.html")), debug=False)

    assert capsys.readouterr().err == "error: report.html: Permission denied\n"


def test_escape_sequences_of_a_name_do_not_reach_the_terminal(capsys):
    guarded(failing(UsageError("there is no range '\x1b]0;owned\x07'")), debug=False)

    assert "\x1b" not in capsys.readouterr().err


def other_database(folder: Path) -> bytes:
    path = folder / "made.sqlite"
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("CREATE TABLE pets (name TEXT)")
    return path.read_bytes()


#: What stands in a file that is no profile.
NO_PROFILES: dict[str, Callable[[Path], bytes]] = {
    "a text": lambda _: b"These are not the bytes of a profile.\n",
    "nothing": lambda _: b"",
    "half an export": lambda folder: (whole := write_export(folder / "whole").read_bytes())[: len(whole) // 2],
    "another database": other_database,
}


@pytest.mark.parametrize("kind", [*NO_PROFILES, "no file", "a folder"])
def test_what_is_no_profile_gives_one_line_and_code_2(kind, tmp_path, warplens):
    path = tmp_path / "case.sqlite"
    if kind == "a folder":
        path.mkdir()
    elif kind != "no file":
        path.write_bytes(NO_PROFILES[kind](tmp_path))

    run = warplens("kernels", path, "--format", "json")

    assert (run.code, run.out, run.err.count("\n")) == (UNUSABLE, "", 1)
    assert run.err.startswith("error: case.sqlite")


def test_a_real_process_separates_answer_and_error(tmp_path):
    (text := tmp_path / "notes.sqlite").write_text("These are not the bytes of a profile.\n")
    done = subprocess.run(subprocess_arguments("kernels", text), capture_output=True, text=True, check=False)

    assert done.returncode == UNUSABLE
    assert done.stdout == ""
    assert done.stderr.startswith("error: notes.sqlite")
    assert done.stderr.count("\n") == 1


def test_a_reader_that_goes_away_is_no_failure(export):
    process = subprocess.Popen(
        subprocess_arguments("kernels", export, "--format", "csv", "--quiet"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()

    complaint = process.stderr.read()
    process.stderr.close()

    assert process.wait() == DONE
    assert complaint == b""


def test_a_gate_fails_though_nobody_reads_the_answer():
    sides = ("demo:deit448_bs8_topk0.1", "demo:deit448_bs8_baseline")
    process = subprocess.Popen(
        subprocess_arguments("compare", *sides, "--fail-on", "5%", "--quiet"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    process.stdout.close()

    assert process.wait() == GATE_FAILED


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")
def test_closed_standard_streams_are_no_defect(export):
    command = shlex.join(subprocess_arguments("kernels", export, "--format", "csv"))

    without_output = subprocess.run(["sh", "-c", f"{command} >&-"], stderr=subprocess.PIPE, text=True, check=False)
    without_errors = subprocess.run(["sh", "-c", f"{command} 2>&-"], stdout=subprocess.PIPE, text=True, check=False)

    assert without_output.returncode == DONE
    assert "Traceback" not in without_output.stderr
    assert without_errors.returncode == DONE
    assert without_errors.stdout.count("\n") == 3


@pytest.mark.skipif(os.name != "posix", reason="Windows sends no SIGINT to a single process")
def test_an_interrupted_run_is_one_line(export):
    script = (
        "import os, signal, sys\n"
        "import warplens.cli.commands.tables as kernels\n"
        "kernels.select = lambda *_: os.kill(os.getpid(), signal.SIGINT)\n"
        f"sys.argv = ['warplens', 'kernels', {str(export)!r}]\n"
        "from warplens.cli.main import run\n"
        "run()\n"
    )

    done = in_python(script)

    assert (done.returncode, done.stdout) == (INTERRUPTED, "")
    assert done.stderr == "error: interrupted\n"


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_one_line(export):
    with FULL.open("w") as full:
        done = subprocess.run(
            subprocess_arguments("kernels", export, "--format", "csv", "--quiet"),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert done.returncode == UNUSABLE
    assert done.stderr == "error: No space left on device\n"


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
def test_what_rust_says_of_a_full_disk_is_one_line(export, tmp_path, warplens):
    (tmp_path / "kernels.parquet").symlink_to(FULL)
    (tmp_path / "copies.parquet").symlink_to(FULL)

    run = warplens("export", export, "--to", "parquet", "-o", tmp_path)

    assert (run.code, run.out) == (UNUSABLE, "")
    assert re.fullmatch(r"error: \w+\.parquet: No space left on device\n", run.err)


@pytest.mark.parametrize("threads", ["0", "-1", "x", "", "99999999999"])
def test_a_setting_that_polars_dies_of_is_wrong_usage(threads, export, monkeypatch, warplens):
    monkeypatch.setenv("POLARS_MAX_THREADS", threads)

    run = warplens("kernels", export)

    assert (run.code, run.out) == (UNUSABLE, "")
    assert run.err.startswith("error: POLARS_MAX_THREADS")


class PanicException(BaseException):
    """As the libraries in Rust raise it."""


def test_a_panic_of_a_library_is_a_defect_and_no_failed_gate(capsys):
    assert guarded(failing(PanicException("index out of bounds")), debug=False) == DEFECT
    assert capsys.readouterr().err.startswith("error: PanicException: index out of bounds")


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize(
    ("number", "code", "said"),
    [("SIGINT", INTERRUPTED, "interrupted"), ("SIGTERM", TERMINATED, "terminated")],
)
def test_a_signal_leaves_nothing_behind(number, code, said, export, tmp_path):
    packed, copy = tmp_path / "p.sqlite.gz", tmp_path / "out" / "copy.sqlite"
    packed.write_bytes(gzip.compress(export.read_bytes()))
    copy.parent.mkdir()
    script = (
        "import os, signal, sys, warplens.scrub\n"
        f"warplens.scrub._compared = lambda *_: os.kill(os.getpid(), signal.{number})\n"
        f"sys.argv = ['warplens', 'scrub', {str(packed)!r}, {str(copy)!r}]\n"
        "from warplens.__main__ import main\n"
        "main()\n"
    )
    (tmp_path / "tmp").mkdir()

    done = in_python(script, TMPDIR=str(tmp_path / "tmp"))

    assert (done.returncode, done.stdout, done.stderr) == (code, "", f"error: {said}\n")
    assert [*copy.parent.iterdir(), *(tmp_path / "tmp").iterdir()] == []


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize("module", ["warplens._version", "typer", "warplens.cli.catalogue", "polars", "numpy"])
def test_an_interruption_while_modules_are_loaded_is_one_line(module, export):
    script = (
        "import importlib.abc, os, signal, sys\n"
        "class Finder(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        f"sys.argv = ['warplens', 'kernels', {str(export)!r}]\n"
        "from warplens.__main__ import main\n"
        "main()\n"
    )

    done = in_python(script)

    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "error: interrupted\n")


def test_a_report_that_cannot_be_finished_leaves_the_earlier_one_as_it_was(export, tmp_path, warplens, monkeypatch):
    assert warplens("report", export, "-o", tmp_path, "-f", "html").code == DONE
    earlier = (tmp_path / "report.html").read_bytes()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    run = warplens("report", export, "-o", tmp_path, "-f", "html", "--window", "all")
    monkeypatch.undo()

    assert (run.code, run.err) == (UNUSABLE, "error: report.html: No space left on device\n")
    assert (tmp_path / "report.html").read_bytes() == earlier
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("=1+cmd|'/C calc'!A0", "'=1+cmd|'/C calc'!A0"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("+f", "'+f"),
        ("-2", "-2"),
        ("k\x1b[31m\x9b\u202e", "k\ufffd[31m\ufffd\ufffd"),
        ("operator-(a)", "operator-(a)"),
    ],
)
def test_a_name_in_csv_is_neither_a_formula_nor_obeyed_by_a_terminal(name, shown, tmp_path, warplens):
    profile = write_export(tmp_path / "p.sqlite", extra_kernel_name=name)

    printed = warplens("kernels", profile, "-f", "csv").out
    warplens("export", profile, "--to", "csv", "-o", tmp_path / "csv")
    exported = (tmp_path / "csv" / "kernels.csv").read_text("utf-8")

    for text in (printed, exported):
        assert shown in {cell for row in csv.reader(io.StringIO(text)) for cell in row}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_name_that_is_not_utf_8_is_no_defect(tmp_path, warplens):
    profile = write_export(tmp_path / os.fsdecode(b"p\xff.sqlite"))
    other = write_export(tmp_path / "other.sqlite", "another_kernel")
    for words in (("kernels", profile), ("report", profile), ("compare", profile, other)):
        run = warplens(*words, "-f", "json")
        assert run.code == DONE
        assert "p?.sqlite" in run.out
    assert warplens("report", profile, "-o", tmp_path / "out").code == DONE
    assert "$'" in warplens(profile, "-o", tmp_path / "out").out


#: What a process may have little of: address space, open files, and bytes of a file.
LIMITS = {"AS": 4 * 2**30, "NOFILE": 10, "FSIZE": 4096}


@pytest.mark.skipif(os.name != "posix", reason="needs limits of a process")
@pytest.mark.parametrize(
    ("limit", "command"),
    thinned(
        [
            *itertools.product(
                LIMITS, ("kernels {export}", "report {export} -o {out} -f html", "scrub {export} {out}.copy")
            ),
            ("AS", "report {export} -o {out} -f md"),
        ],
        quick=(
            ("AS", "report {export} -o {out} -f md"),
            ("NOFILE", "kernels {export}"),
            ("AS", "report {export} -o {out} -f html"),
            ("FSIZE", "scrub {export} {out}.copy"),
        ),
    ),
)
def test_a_process_that_may_have_little_answers_or_says_so(limit, command, export, tmp_path):
    import resource

    number, value = getattr(resource, f"RLIMIT_{limit}"), LIMITS[limit]
    words = command.format(export=export, out=tmp_path / "out").split()
    done = subprocess.run(
        subprocess_arguments(*words, "--quiet"),
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        preexec_fn=lambda: resource.setrlimit(number, (value, value)),
        check=False,
    )

    assert done.returncode in (DONE, UNUSABLE)
    assert done.stderr.count("\n") == (done.returncode == UNUSABLE)
    assert done.returncode == DONE or not (tmp_path / "out").exists()  # nothing half-done is left
    assert "damaged" not in done.stderr  # the file is sound
    assert [path.name for path in tmp_path.rglob("*") if path.name.endswith((".partial", ".copy"))] == [
        "out.copy" for _ in range(done.returncode == DONE and "scrub" in command)
    ]


def test_an_answer_on_standard_output_needs_no_folder_to_write_to(export, warplens, monkeypatch):
    monkeypatch.setattr("warplens.cli.answer.TemporaryFile", failing(PermissionError(13, "Permission denied")))

    assert warplens("report", export, "-f", "json").code == DONE
    assert warplens("report", export).code == UNUSABLE


@pytest.mark.parametrize(
    "error",
    [
        ImportError("libx.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
        MemoryError(),
    ],
)
def test_too_little_memory_is_no_defect(error, capsys):
    assert guarded(failing(error), debug=False) == UNUSABLE
    assert "there is not enough memory" in capsys.readouterr().err


def test_a_termination_between_two_steps_is_one_line():
    script = (
        "import warplens.cli.main as program\n"
        "def run(): raise program.TerminatedError\n"
        "program.run = run\n"
        "program.script()\n"
    )
    done = in_python(script)

    assert (done.returncode, done.stdout, done.stderr) == (TERMINATED, "", "error: terminated\n")
