"""Words that stand for secrets, planted wherever a profile was seen to hold some, come out nowhere."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import re
import socket
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import polars as pl
import pytest
import zstandard

from tests import shipped
from tests.cli.conftest import Run
from tests.cli.small_export import write_export
from tests.cli.torch_trace import write_trace
from tests.readers.ncu_reports import Report, push_pop, put
from tests.readers.nsys_reports import STRINGS, message, small_report
from tests.test_scrub_counters import COLUMNS, LAUNCH, STATE
from warplens.cli.catalogue import COMMANDS
from warplens.report.text import data_size

#: Texts that people write into names, each with the word of it that may come out nowhere.
WRITTEN = {
    "~kanaria/data": "kanaria/",
    "load ../kanarienvogel/x.bin": "kanarienvogel",
    "open /fsx-eu/kanari1/shard.bin": "kanari1",
    "open /p/kanari2/Data": "kanari2",
    "s3://kanari3-bucket/model": "kanari3",
    "from 2001:db8::ca:4a71": "ca:4a71",
    "from fe80::ca4a:71ff:fe00:1": "ca4a:71ff",
    "link 02:ca:4a:71:00:05": "ca:4a:71",
    "slurm kanari4@node017": "kanari4",
    "on kanari5.hpc.example": "kanari5",
    "on kanari6-07.cluster.uni-x.de": "kanari6",
    "key hf_KanariQwErTyUiOp1234567890": "KanariQw",
    "key AKIAKANARI7ABCDEFG12": "KANARI7",
    "password=kanari8": "kanari8",
    "hash ca4a71ca4a71ca4a71ca4a71ca4a71ca4a71ca4a": "ca4a71ca",
    "GPU-ca4a71b0-20f2-b946-4252-f91700b71749": "ca4a71b0",
    "bus 0000:ca:00.0": "0000:ca",
    "by KANARI9": "KANARI9",
}
USER = "kanari9"
#: Words in places that nothing reads.
UNREAD = ("kanari-env", "kanari-default", "kanari_column", "kanari-comment", "KANARI_KIND", "kanari-row", "kanari-diag")

#: The forms of what prints, all that there are.
FORMS = [("json",), pytest.param(("table", "csv", "md"), marks=pytest.mark.slow)]
TABLES = tuple(name for name, command in COMMANDS.items() if command.module.startswith("questions."))
OF_TRACES = tuple(f"{name} {{0}}" for name in (*TABLES, "diagnose", "headroom", "ranks --workers 1", "compare {0}"))
OF_COUNTERS = ("counters {0}", "counters --by launch {0}", "roofline {0}", "compare {0} {0}")
OF_MEASUREMENTS = ("bench show {0}", "sweep report {0}", "compare {0} {0} --variant-where method=topk")


def nsys(folder: Path) -> Path:
    path = write_export(folder / "planted.sqlite")
    with closing(sqlite3.connect(path)) as file, file:
        for place, text in enumerate(WRITTEN):
            file.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, ?, NULL, 0)", (place, place + 1, text, 77 << 24))
        file.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (0, '', 'UserName', 0, ?)", (USER,))
        file.execute("UPDATE TARGET_INFO_SYSTEM_ENV SET devStateName = 'kanari-env'")
        file.execute("UPDATE TARGET_INFO_GPU SET busLocation = '0000:ca:00.0'")
        file.execute("ALTER TABLE NVTX_EVENTS ADD COLUMN kanari_column TEXT DEFAULT 'kanari-default'")
        file.execute("CREATE TABLE ThreadNames (nameId INTEGER /* kanari-comment */, globalTid INTEGER)")
        file.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KANARI_KIND (text TEXT)")
        file.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KANARI_KIND VALUES ('kanari-row')")
        file.execute(
            "CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER, severity INTEGER, text TEXT, globalPid INTEGER)"
        )
        file.execute("INSERT INTO DIAGNOSTIC_EVENT VALUES (0, 2, 'kanari-diag exited', 0)")
    return path


def torch(folder: Path) -> Path:
    path = write_trace(folder / "planted.json")
    trace = json.loads(path.read_bytes())
    trace.update(username=USER, traceName="/x/kanari-env", hostnames=["kanari-row"])
    common = {"ph": "X", "pid": 10, "tid": 10, "dur": 0.5}
    for place, text in enumerate(WRITTEN):
        at = {**common, "ts": place}
        trace["traceEvents"] += [
            {**at, "cat": "user_annotation", "name": text},
            {
                **at,
                "cat": "cpu_op",
                "name": "aten::load",
                "args": {"Concrete Inputs": ["1", text], "kanari_column": text},
            },
        ]
    frame = {**common, "ts": 1, "cat": "python_function", "args": {"Python id": 7000}}
    trace["traceEvents"].append({**frame, "name": "/x/kanari-default/train.py(3): main"})
    path.write_text(json.dumps(trace))
    return path


def measurements(folder: Path) -> Path:
    document = json.loads(
        lzma.decompress(shipped.files("measurements", "token_reduction_methods.json.xz")[0].read_bytes())
    )
    document |= {"host": "kanari-env", "command": "kanari-row"}
    document["measurements"][0]["kanari_column"] = "kanari-default"
    cell = document["measurements"][1]["cell"]
    reason = "; ".join(text for text in WRITTEN if USER.upper() not in text)
    document["measurements"][1] = {"cell": cell, "status": "failed", "reason": reason}
    (path := folder / "planted.json").write_text(json.dumps(document))
    return path


def counters(folder: Path) -> Path:
    rows = []
    for place, text in enumerate(text for text in WRITTEN if ":" not in text):  # which ends the text in such a cell
        named = f'"4712 ""Default:step:none:none:none:none:str:{text}"""'
        host = "kanari-env" if place else USER
        rows.append(f'"{place}","4711","kanari-row","{host}",{named},"gemm(float *)",{LAUNCH},"2","32"')
    head = f'"ID","Process ID","Process Name","Host Name","{STATE}","Kernel Name",{COLUMNS}'
    units = '"","","","","","","","","","","","","us","register/thread"'
    path = folder / "planted.csv"
    path.write_text("\n".join(["kanari-default", head, units, *rows]) + "\n")
    return path


def ncu_report(folder: Path) -> Path:
    program = put(1, "kanari-env") + put(2, "kanari-row") + put(3, "kanari-default") + put(4, f"USER={USER}")
    session = put(3, put(1, "Linux") + put(5, "kanari-diag")) + put(9, program) + put(11, "kanari-comment")
    report = Report().session(put(1, 4711) + session)
    for text in WRITTEN:
        counted = {"gpu__time_duration.sum": 1500.0, "launch__registers_per_thread": 32}
        report.launch("gemm", counted, extra=put(12, "KANARI_KIND") + put(21, push_pop("step", text)))
    return report.write(folder / "planted.ncu-rep")


def nsys_report(folder: Path) -> Path:
    """As it is recorded: read without nsys, and not scrubbed without it."""
    capture = {1: 4, 20: 1, 21: 1, 40: b"kanari-env", 41: b"kanari-row"}
    origin, options = message({6: b"2025.3.1.0", 30: b"kanari-default"}), message({26: capture})
    strings = (*STRINGS, b"kanari-comment", b"/home/kanari-diag/x")
    content = small_report(origin=origin, options=options, strings=strings)
    (path := folder / "planted.nsys-rep").write_bytes(content)
    return path


PACKERS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}
UNPACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".xz": lzma.decompress,
    ".zst": lambda packed: zstandard.ZstdDecompressor().stream_reader(io.BytesIO(packed)).read(),
}


def found(content: bytes, words: tuple[str, ...]) -> list[str]:
    return [word for word in words if word.encode() in content]


WRITERS = [nsys, torch, measurements, counters, ncu_report]


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_no_planted_word_is_in_the_bytes_of_a_scrubbed_copy(write, tmp_path, warplens):
    source, planted = write(tmp_path), (*WRITTEN.values(), *UNREAD)
    assert len(found(source.read_bytes(), planted)) > len(WRITTEN) / 2  # they were there

    run = warplens("scrub", source, tmp_path / "copy")

    assert (run.code, run.err) == (0, "")
    assert found((copy := tmp_path / "copy").read_bytes() + run.out.encode(), planted) == []
    assert warplens("scrub", copy, tmp_path / "again").code == 0
    assert (tmp_path / "again").read_bytes() == copy.read_bytes()
    for suffix, pack in PACKERS.items():
        (given := source.with_name(f"given{suffix}")).write_bytes(pack(source.read_bytes()))
        packed = warplens("scrub", given, taken := tmp_path / f"packed{suffix}")
        assert (packed.code, packed.err) == (0, "")
        assert f": {data_size(taken.stat().st_size)}, a copy of" in packed.out  # of the file, not of its content
        content = UNPACKERS[suffix](taken.read_bytes())
        assert found(taken.read_bytes() + content + packed.out.encode(), planted) == []


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_what_others_would_see_is_told_in_kinds_and_counts(write, tmp_path, warplens):
    source, copy = write(tmp_path), tmp_path / "copy"

    run = warplens("scrub", "--check", source)

    assert (run.code, run.err) == (1, "")
    assert {"path", "machine", "token"} <= set(re.findall(r"texts with: (\w+)", run.out))
    assert found(run.out.encode(), (*WRITTEN.values(), *UNREAD)) == []
    assert warplens("scrub", source, copy).code == 0
    assert warplens("scrub", "--check", copy) == Run(0, "copy: scrub would leave out nothing\n", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([source.name, "copy"])


def everything_said(
    source: Path, lines: tuple[str, ...], folder: Path, warplens: Callable[..., Run], forms: tuple[str, ...]
) -> bytes:
    """All that these commands print of a file in these forms, and all files that others write."""
    said = ""
    for line in lines:
        for form in forms:
            run = warplens(*line.format(source).split(), "-f", form)
            assert run.code in (0, 1, 2), run.err
            said += run.out + run.err
    for words in (
        ("report", source, "-o", folder / "report", "-f", "html,md,json"),
        ("compare", source, source, "-o", folder / "compare"),
        ("export", source, "--to", "csv", "-o", folder / "csv"),
        ("export", source, "--to", "parquet", "-o", folder / "parquet"),
        ("export", source, "--to", "perfetto", "-o", folder / "x.pftrace"),
        ("answer", source, "-o", folder / "answer"),
    ):
        run = warplens(*words)
        said += run.out + run.err
    files = [path for path in folder.rglob("*") if path.is_file()]
    return (
        said.encode()
        + b"".join(path.read_bytes() for path in files)
        + b"".join(pl.read_parquet(path).write_json().encode() for path in files if path.suffix == ".parquet")
    )


#: What was contacted, while it is listened to.
contacted: list[str] = []
listening: list[bool] = []


@contextmanager
def contacts() -> Iterator[list[str]]:
    """What is contacted within."""
    contacted.clear()
    listening.append(True)
    try:
        yield contacted
    finally:
        listening.clear()


def _listen(event: str, arguments: tuple[object, ...]) -> None:
    if not listening or not event.startswith("socket."):
        return
    if event == "socket.__new__" and arguments[1] not in (socket.AF_INET, socket.AF_INET6):
        return  # processes of one machine speak through others
    contacted.append(f"{event} {arguments[1:]}")


sys.addaudithook(_listen)  # for good: hooks cannot be removed


@pytest.mark.parametrize(
    ("write", "lines"),
    [
        (nsys, OF_TRACES), pytest.param(torch, OF_TRACES, marks=pytest.mark.slow),
        pytest.param(nsys_report, OF_TRACES, marks=pytest.mark.slow), (counters, OF_COUNTERS),
        (ncu_report, OF_COUNTERS), (measurements, OF_MEASUREMENTS),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
@pytest.mark.parametrize("forms", FORMS, ids="-".join)
def test_nothing_that_is_said_of_an_original_holds_what_nothing_reads_and_nobody_is_contacted(
    write, lines, forms, tmp_path, warplens
):
    source = write(tmp_path)

    with contacts() as found_online:
        said = everything_said(source, lines, tmp_path / "written", warplens, forms)

    assert len(said) > 5_000
    assert found(said, UNREAD) == []
    assert found_online == []


def test_a_connection_would_be_noticed():
    with contacts() as found_online, socket.socket(socket.AF_INET, socket.SOCK_DGRAM):
        assert len(found_online) == 1


@pytest.mark.parametrize("write", [pytest.param(nsys, marks=pytest.mark.slow), torch], ids=lambda write: write.__name__)
@pytest.mark.parametrize("forms", FORMS, ids="-".join)
def test_no_planted_word_is_in_what_is_said_of_a_scrubbed_copy_nor_in_an_export_of_the_original(
    write, forms, tmp_path, warplens
):
    source, copy = write(tmp_path), tmp_path / "copy"
    assert warplens("scrub", source, copy).code == 0
    said = everything_said(copy, OF_TRACES, tmp_path / "written", warplens, forms)
    assert warplens("export", source, "--to", "csv", "-o", tmp_path / "csv").code == 0
    assert warplens("export", source, "--to", "perfetto", "-o", tmp_path / "trace").code == 0
    said += b"".join(path.read_bytes() for path in (*(tmp_path / "csv").iterdir(), tmp_path / "trace"))

    # A user's name has no form of its own: only a copy, which looks for the names that a profile lists, can lack it.
    texts = tuple(word for word in WRITTEN.values() if word != USER.upper())
    assert found(said, (*texts, *UNREAD)) == []
