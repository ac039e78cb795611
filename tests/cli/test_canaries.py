"""Words that stand for secrets, planted wherever a profile was seen to hold some, come out nowhere."""

from __future__ import annotations

import gzip
import json
import lzma
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

from tests import shipped
from tests.cli.small_export import write_export
from tests.cli.torch_trace import write_trace
from tests.test_scrub_counters import COLUMNS, LAUNCH, STATE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Run

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
COMMANDS = (("diagnose",), ("kernels",), ("operators",), ("code",), ("ranges",), ("ranges", "--format", "json"))


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


def found(content: bytes, words: tuple[str, ...]) -> list[str]:
    return [word for word in words if word.encode() in content]


@pytest.mark.parametrize("write", [nsys, torch, measurements, counters], ids=lambda write: write.__name__)
def test_no_planted_word_is_in_the_bytes_of_a_scrubbed_copy(
    write: Callable[[Path], Path], tmp_path: Path, warplens: Callable[..., Run]
) -> None:
    source, planted = write(tmp_path), (*WRITTEN.values(), *UNREAD)
    assert len(found(source.read_bytes(), planted)) > len(WRITTEN) / 2  # they were there

    run = warplens("scrub", source, tmp_path / "copy")
    packed = warplens("scrub", source, tmp_path / "copy.gz")

    assert (run.code, packed.code, run.err) == (0, 0, "")
    for content in ((tmp_path / "copy").read_bytes(), gzip.decompress((tmp_path / "copy.gz").read_bytes())):
        assert found(content, planted) == []
    assert found((tmp_path / "copy.gz").read_bytes() + (run.out + packed.out).encode(), planted) == []
    assert warplens("scrub", tmp_path / "copy", tmp_path / "again").code == 0
    assert (tmp_path / "again").read_bytes() == (tmp_path / "copy").read_bytes()


@pytest.mark.parametrize("write", [nsys, torch], ids=lambda write: write.__name__)
def test_no_planted_word_is_in_what_is_said_of_a_scrubbed_copy_nor_in_an_export_of_the_original(
    write: Callable[[Path], Path], tmp_path: Path, warplens: Callable[..., Run]
) -> None:
    source, copy = write(tmp_path), tmp_path / "copy"
    assert warplens("scrub", source, copy).code == 0
    said = b"".join((run.out + run.err).encode() for command in COMMANDS for run in [warplens(*command, copy)])
    written = tmp_path / "written"
    assert warplens("report", copy, "-o", written).code == 0
    warplens("diagnose", source, "-o", written)
    assert warplens("export", source, "--to", "csv", "-o", written / "csv").code == 0
    assert warplens("export", source, "--to", "perfetto", "-o", written / "trace").code == 0
    assert warplens("export", source, "--to", "parquet", "-o", written / "parquet").code == 0
    files = [path for path in written.rglob("*") if path.is_file()]
    said += b"".join(path.read_bytes() for path in files)
    said += b"".join(pl.read_parquet(path).write_json().encode() for path in files if path.suffix == ".parquet")

    # A user's name has no form of its own: only a copy, which looks for the names that a profile lists, can lack it.
    texts = tuple(word for word in WRITTEN.values() if word != USER.upper())
    assert len(files) > 10
    assert found(said, (*texts, *UNREAD)) == []


@pytest.mark.parametrize("write", [nsys, torch], ids=lambda write: write.__name__)
def test_no_report_of_an_original_holds_a_word_from_where_nothing_is_read(
    write: Callable[[Path], Path], tmp_path: Path, warplens: Callable[..., Run]
) -> None:
    source = write(tmp_path)
    said = "".join(run.out + run.err for command in COMMANDS for run in [warplens(*command, source)]).encode()
    assert warplens("report", source, "-o", tmp_path / "report").code == 0
    said += b"".join(path.read_bytes() for path in (tmp_path / "report").rglob("*") if path.is_file())
    assert found(said, UNREAD) == []
