from __future__ import annotations

import dataclasses
import json
import lzma
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import warplens
import warplens.readers.nsys.scrub
import warplens.secrets
from tests.shipped import FOLDERS, OTHERS
from tests.tiers import thinned
from warplens.errors import UnreadableInputError, UsageError
from warplens.readers import read
from warplens.scrub import ScrubError, ScrubReport, scrub
from warplens.secrets import ADDRESSES, FORBIDDEN, PATHS

SHIPPED = tuple(folder / "captures" for folder in FOLDERS)

USER, HOST, TOKEN = "anneliese", "gpu-node-17.physics.example", "tok-9f8e7d6c5b4a"
IDENTIFYING = (
    USER,
    HOST,
    TOKEN,
    "example.org",
    "10.20.30.40",
    "Project Zebra",
    "zebra",
    "wandb: logged in",
    "deed2697-",
)

_SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE ANALYSIS_FILE (id INTEGER, filename TEXT, contentId INTEGER, globalPid INTEGER);
CREATE TABLE ProcessStreams (globalPid INTEGER, filenameId INTEGER, contentId INTEGER);
CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
CREATE TABLE ThreadNames (nameId INTEGER, priority INTEGER, globalTid INTEGER);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT, name TEXT, nameEnum INTEGER, value TEXT);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, uuid TEXT);
CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT);
CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER, severity INTEGER, text TEXT);
CREATE TABLE OSRT_FILE_ACCESS_DESCRIPTORS (id INTEGER, filePath TEXT);
CREATE TABLE NOTES_OF_A_PLUGIN (text TEXT);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER,
                          jsonText TEXT, binaryData TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER,
                                          nameId INTEGER, returnValue INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
                                         correlationId INTEGER, globalPid INTEGER, demangledName INTEGER,
                                         shortName INTEGER, gridX INTEGER);
CREATE INDEX by_start ON CUPTI_ACTIVITY_KIND_KERNEL (start);
"""

#: A function may be called like a user; its name was written by a compiler.
KERNEL = f"void at::{USER}::gemm<float>(float *)"
STRINGS = {
    1: KERNEL,
    2: "gemm",
    3: "cudaLaunchKernel_v7000",
    4: "forward_pass",
    5: f"load /home/{USER}/Project Zebra/shard 3.bin",
    6: "pt_autograd_0",
    7: f"train_{USER}",
    8: "wandb: logged in as somebody\nLoss 3.2\n",
    9: f"/home/{USER}/out.log",
}
TEXTS = (
    b"step",
    f"{USER} on {HOST}".encode(),
    f"open C:\\Users\\{USER}\\zebra\\a.bin".encode(),
    f"open C:\\Users\\{USER}\\zebra\\b.bin".encode(),
    b"mail someone@example.org from 10.20.30.40",
    b"/model/layer.0/attention/MatMul",
    b"jit(main)/transpose(jvp(loss))/add",
    b"gr\xf6\xdfe \xb5s",  # Latin-1
    f"key={TOKEN}".encode(),
)
PROCESS = 77 << 24


@pytest.fixture
def export(tmp_path):
    """An export as nsys writes it, with an identity planted in every place that was seen to hold one."""
    path = tmp_path / "export.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(_SCHEMA)

        def fill(table: str, *rows: tuple[object, ...]) -> None:
            marks = ", ".join("?" * len(rows[0]))
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)

        fill("StringIds", *STRINGS.items())
        fill("ANALYSIS_FILE", (0, f"/home/{USER}/nsys/stdout.log", 8, PROCESS))
        fill("ProcessStreams", (PROCESS, 9, 8))
        fill("PROCESSES", (PROCESS, 77, "zebra-train"))
        fill("ThreadNames", (6, 20, PROCESS | 78), (7, 20, PROCESS | 79))
        fill(
            "TARGET_INFO_SYSTEM_ENV",
            (1, HOST, "Hostname", 1, HOST),
            (1, HOST, "NvDriverVersion", 2, "580.159.04"),
            (1, HOST, "SoftwareReleaseVersion", 3, "5.15.153.1-microsoft-standard-WSL2-zebra"),
            (1, HOST, "DeviceEnvironment", 4, f"HUB_TOKEN={TOKEN};HOME=/home/{USER};MODE=training_of_zebra"),
            (1, HOST, "OsDescription", 5, "Ubuntu 24.04.3 LTS"),
        )
        fill("TARGET_INFO_SESSION_START_TIME", (1, "2026-01-01T12:00:00", "2026-01-01T18:00:00"))
        fill("TARGET_INFO_GPU", (0, "NVIDIA H200", "deed2697-20f2-b946-4252-f91700b71749"))
        fill(
            "META_DATA_CAPTURE",
            ("PROCESS_0:COLLECT_CUDA_TRACE", "true"),
            ("PROCESS_0:COMMAND", f"/home/{USER}/bin/python"),
            ("PROCESS_0:ARGUMENT_0", "zebra/train.py"),
            ("PROCESS_0:WORKING_DIR", f"/home/{USER}/Project Zebra"),
            ("PROCESS_0:ENVIRONMENT_VARIABLE", f'WANDB_API_KEY="{TOKEN}"'),
            ("PROCESS_0:USER_NAME", USER),
        )
        fill(
            "META_DATA_EXPORT",
            ("EXPORT_PRODUCT_VERSION", "2025.3.2.0"),
            ("EXPORT_HOST", HOST),
            ("EXPORT_USER", USER),
            ("EXPORT_PARAM_INPUT_PATH_ABS", f"/home/{USER}/Project Zebra/run.nsys-rep"),
        )
        fill("DIAGNOSTIC_EVENT", (0, 2, f"Launched by the profiler, see /home/{USER}/tmp/pid_526_stdout.log"))
        fill("OSRT_FILE_ACCESS_DESCRIPTORS", (0, f"/home/{USER}/.ssh/id_ed25519"))
        fill("NOTES_OF_A_PLUGIN", (f"zebra, run by {USER}",))
        ranges = [(100 * i, 100 * i + 90, 59, text, PROCESS | 78, None, None, None) for i, text in enumerate(TEXTS)]
        ranges += [(5, 80, 59, None, PROCESS | 78, 4, f'{{"by": "{USER}"}}', b"zebra")]
        ranges += [(6, 70, 59, None, PROCESS | 78, 5, None, None)]
        fill("NVTX_EVENTS", *ranges)
        connection.execute("UPDATE NVTX_EVENTS SET text = CAST(text AS TEXT)")
        fill("CUPTI_ACTIVITY_KIND_RUNTIME", *((100 * i, 100 * i + 5, PROCESS | 78, i, 3, 0) for i in range(9)))
        fill(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            *((100 * i + 9, 100 * i + 50, 0, 7, i, PROCESS, 1, 2, 128) for i in range(9)),
        )
    return path


@pytest.fixture
def target(tmp_path):
    return tmp_path / "shared.sqlite"


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        connection.text_factory = bytes
        return connection.execute(query).fetchall()


def assert_same_trace(source: Path, copy: Path) -> None:
    """Every table that analyses read, and every note, is the same; only the file's name may differ."""
    before, after = read(source), read(copy)
    for field in dataclasses.fields(before):
        if field.name != "capture":
            assert getattr(before, field.name).equals(getattr(after, field.name)), field.name
    assert dataclasses.replace(before.capture, source="") == dataclasses.replace(after.capture, source="")


def test_nothing_that_identifies_is_left_in_the_bytes_of_the_copy(export, target):
    original = export.read_bytes()
    scrub(export, target)
    content = target.read_bytes().replace(KERNEL.encode(), b"")
    for planted in IDENTIFYING:
        assert planted.encode() in original
        assert planted.encode() not in content


def test_events_are_copied_unchanged(export, target):
    scrub(export, target)
    for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"):
        assert rows(target, f"SELECT rowid, * FROM {table}") == rows(export, f"SELECT rowid, * FROM {table}")
    times = "SELECT start, end, eventType, globalTid, textId FROM NVTX_EVENTS"
    assert rows(target, times) == rows(export, times)


def test_names_of_functions_stay_even_where_they_equal_a_user_name(export, target):
    scrub(export, target)
    names = rows(target, "SELECT DISTINCT value FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName")
    assert names == [(KERNEL.encode(),)]


def test_names_of_ranges_lose_paths_and_people_and_nothing_else(export, target):
    scrub(export, target)
    texts = [text for (text,) in rows(target, "SELECT text FROM NVTX_EVENTS WHERE text IS NOT NULL")]
    assert texts[0] == b"step"
    assert texts[1] == b"[removed] on [removed]"
    assert texts[4] == b"mail [removed] from [removed]"
    assert texts[5] == b"/model/layer.0/attention/MatMul"
    assert texts[6] == b"jit(main)/transpose(jvp(loss))/add"
    assert texts[7] == b"gr\xf6\xdfe \xb5s"
    assert texts[8] == b"key=[removed]"


def test_ranges_that_differ_by_a_path_stay_different(export, target):
    scrub(export, target)
    opened = rows(target, "SELECT text FROM NVTX_EVENTS WHERE text LIKE 'open%'")
    assert len(set(opened)) == 2
    assert all(re.fullmatch(rb"open \[path \d+\]", text) for (text,) in opened if isinstance(text, bytes))


@pytest.mark.parametrize(
    ("setting", "value", "name", "kept", "left"),
    [
        ("ENVIRONMENT_VARIABLE", "WANDB_PROJECT=okapi-retrain", "okapi-retrain epoch 1", "[removed] epoch 1", 0),
        ("ENVIRONMENT_VARIABLE", "SLURM_JOB_NAME=okapi7retrain", "job Okapi7Retrain", "job [removed]", 0),
        ("COMMAND", "python train.py --run=okapi_big", "okapi_big/layer", "[removed]/layer", 0),
        ("ENVIRONMENT_VARIABLE", "NAME=okapi", "okapi epoch", "okapi epoch", 1),  # it may be a word
        ("ARGUMENT_3", "--animal=okapi", "okapi epoch", "okapi epoch", 1),
        ("ENVIRONMENT_VARIABLE", "NAME=okapi", "okapis", "okapis", 0),
        ("ENVIRONMENT_VARIABLE", "MODE=train_step", "train_step", "train_step", 0),
        ("ENVIRONMENT_VARIABLE", "LEVEL=1.50", "level 1.50", "level 1.50", 0),
        ("ENVIRONMENT_VARIABLE", "GPU=NVIDIA-H200", "H200", "H200", 0),
    ],
)
def test_values_of_the_environment_in_names_of_ranges_are_removed_or_counted(
    export, target, setting, value, name, kept, left
):
    with closing(sqlite3.connect(export)) as connection, connection:
        connection.execute("INSERT INTO META_DATA_CAPTURE VALUES (?, ?)", (f"PROCESS_0:{setting}", value))
        connection.execute("UPDATE NVTX_EVENTS SET text = ? WHERE text = 'step'", (name,))
    assert scrub(export, target).left == left
    assert (kept.encode(),) in rows(target, "SELECT text FROM NVTX_EVENTS")


def test_only_strings_that_a_row_of_the_copy_refers_to_come_along(export, target):
    scrub(export, target)
    assert [identifier for (identifier,) in rows(target, "SELECT id FROM StringIds")] == [1, 2, 3, 4, 5, 6]


def test_tables_that_no_analysis_reads_are_left_out(export, target):
    report = scrub(export, target)
    left = {"ANALYSIS_FILE", "ProcessStreams", "PROCESSES", "OSRT_FILE_ACCESS_DESCRIPTORS", "NOTES_OF_A_PLUGIN"}
    tables = {name.decode() for (name,) in rows(target, "SELECT name FROM sqlite_master") if isinstance(name, bytes)}
    assert not left & tables
    assert set(report.tables) == left


def test_the_gpu_the_versions_and_the_date_stay(export, target):
    scrub(export, target)
    settings = dict(rows(target, "SELECT name, value FROM TARGET_INFO_SYSTEM_ENV"))
    assert settings[b"NvDriverVersion"] == b"580.159.04"
    assert settings[b"SoftwareReleaseVersion"] == b"5.15-microsoft"  # WSL records no GPU work: readers must know
    assert rows(target, "SELECT name, uuid FROM TARGET_INFO_GPU") == [(b"NVIDIA H200", b"")]
    assert dict(rows(target, "SELECT name, value FROM META_DATA_CAPTURE")) == {b"PROCESS_0:COLLECT_CUDA_TRACE": b"true"}
    assert dict(rows(target, "SELECT name, value FROM META_DATA_EXPORT")) == {b"EXPORT_PRODUCT_VERSION": b"2025.3.2.0"}


def test_the_local_time_does_not_say_where_the_machine_stands(export, target):
    scrub(export, target)
    assert rows(target, "SELECT utcTime, localTime FROM TARGET_INFO_SESSION_START_TIME") == [
        (b"2026-01-01T12:00:00", b"2026-01-01T12:00:00")
    ]


def test_the_report_counts_and_repeats_nothing(export, target):
    report = scrub(export, target)
    assert (report.source, report.target) == ("export.sqlite", target)
    assert report.rows["META_DATA_CAPTURE"] == 5
    assert report.rows["StringIds"] == 3
    assert report.texts == {"NVTX_EVENTS.text": 5, "StringIds.value": 1}
    assert not any(planted in repr(dataclasses.replace(report, target=Path())) for planted in IDENTIFYING)


def test_the_source_is_not_touched(export, target):
    export.chmod(0o444)
    before = export.read_bytes(), export.stat().st_mtime_ns
    scrub(export, target)
    assert (export.read_bytes(), export.stat().st_mtime_ns) == before
    assert sorted(path.name for path in export.parent.iterdir()) == ["export.sqlite", "shared.sqlite"]


def test_an_existing_file_is_never_overwritten(export, target):
    target.write_text("precious")
    with pytest.raises(UsageError, match=r"shared\.sqlite: exists already"):
        scrub(export, target)
    with pytest.raises(UsageError, match="exists already"):
        scrub(export, export)
    assert target.read_text() == "precious"


def test_a_missing_folder_is_named(export, tmp_path):
    with pytest.raises(UsageError, match="the folder to write it to does not exist"):
        scrub(export, tmp_path / "absent" / "shared.sqlite")


@pytest.mark.parametrize("content", [b"", b"just text\n", b"SQLite format 3\0" + b"\0" * 50])
def test_what_is_no_export_is_refused_and_nothing_is_written(content, tmp_path):
    source = tmp_path / "profile.sqlite"
    source.write_bytes(content)
    with pytest.raises(UnreadableInputError, match=r"^profile\.sqlite: "):
        scrub(source, tmp_path / "shared.sqlite")
    assert list(tmp_path.iterdir()) == [source]


def test_another_database_is_refused_and_nothing_is_written(tmp_path):
    source = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(source)) as connection, connection:
        connection.execute("CREATE TABLE passwords (name TEXT, value TEXT)")
    with pytest.raises(UnreadableInputError, match="not an Nsight Systems export"):
        scrub(source, tmp_path / "shared.sqlite")
    assert list(tmp_path.iterdir()) == [source]


def test_a_damaged_export_is_refused_and_nothing_is_written(export, target):
    ((page,),) = rows(export, "SELECT rootpage FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_KERNEL'")
    assert isinstance(page, int)
    content = bytearray(export.read_bytes())
    content[4096 * (page - 1) : 4096 * page] = b"\xff" * 4096
    export.write_bytes(content)
    with pytest.raises(UnreadableInputError, match="damaged"):
        scrub(export, target)
    assert list(target.parent.iterdir()) == [export]


def test_a_copy_that_still_identifies_is_discarded(export, target, monkeypatch):
    monkeypatch.setattr(warplens.secrets, "PATHS", re.compile(rb"(?!)"))
    with pytest.raises(ScrubError, match=r"export\.sqlite: .* was still in the copy"):
        scrub(export, target)
    assert list(target.parent.iterdir()) == [export]


def test_the_raw_bytes_are_searched_for_the_environment(export, target, monkeypatch):
    monkeypatch.setattr(warplens.readers.nsys.scrub._Copy, "texts", lambda _: (b"", b""))
    monkeypatch.setattr(warplens.readers.nsys.scrub, "_KEPT_SETTINGS", {"META_DATA_CAPTURE": re.compile(rb".*")})
    with pytest.raises(ScrubError, match="a value of the environment or the command line"):
        scrub(export, target)


_PLACES = ["/home/", "/Users/", "/root/", "C:\\Users\\", "d:/Users/", "/tmp", ".ssh"]
_FRAGMENTS = st.sampled_from([*_PLACES, "/", "\\", " ", "a", "Ann Lee", "'", '"', "x:", "\n"])


@given(st.lists(_FRAGMENTS | st.text(max_size=3), max_size=12).map("".join))
def test_no_text_keeps_the_path_of_a_home_folder(text):
    assert not FORBIDDEN.search(PATHS.sub(b"[path]", text.encode("utf-8", "replace")))


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (b"read /data/set one/x.bin now", b"read [path] now"),
        (b"file:///home/ann/a.py:12", b"[path]"),
        (b'"C:/Program Files/NVIDIA Corporation/a.dll"', b'"[path]"'),
        (b"\\\\server\\share\\x y", b"[path] y"),
        (b"loss/total", b"loss/total"),
        (b"/encoder/layer.3/Add", b"/encoder/layer.3/Add"),
        (b"a /b", b"a /b"),
        (b"http 2/3 of c:d", b"http 2/3 of c:d"),
    ],
)
def test_paths_are_told_from_other_slashes(text, clean):
    assert PATHS.sub(b"[path]", text) == clean


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (b"copied from ann@10.1.2.3:", b"copied from [removed]:"),
        (b"rank 3 on ip-10-0-12-7", b"rank 3 on [removed]"),
        (b"rank 3 on ip-10-0-12-7.compute.internal", b"rank 3 on [removed]"),
        (b"clip-10-0-1-2 and skip-1-2-3-4", b"clip-10-0-1-2 and skip-1-2-3-4"),
    ],
)
def test_users_and_machines_that_are_named_by_an_address(text, clean):
    assert ADDRESSES.sub(b"[removed]", text) == clean


@pytest.mark.parametrize("unit", [b"a", b"/a", b"a/", b"/home", b"a ", b"\\a", b"sk-", b"hf_"])
def test_a_long_text_takes_time_in_proportion(unit):
    """A quadratic search takes hours."""
    assert not FORBIDDEN.search(PATHS.sub(b"[path]", unit * 200_000))
    assert not ADDRESSES.search(ADDRESSES.sub(b"[removed]", unit * 200_000))


@pytest.mark.parametrize(
    "capture",
    thinned(sorted(OTHERS.glob("nsys/*.sqlite")) or [None], slow=("h100x2_before", "h100x2_after", "a100_lm2p7b_nvtx")),
    ids=lambda path: path and path.stem,
)
def test_analyses_of_a_scrubbed_capture_are_the_same(capture, target):
    if capture is None:
        pytest.skip("no captures of others are at hand (see WARPLENS_SHARED)")
    if capture.stem == "not_an_nsys_file":
        pytest.skip("not a capture")
    report = scrub(capture, target)
    assert isinstance(report, ScrubReport)
    assert not FORBIDDEN.search(target.read_bytes())
    # Identities in names of ranges are rewritten; none of these captures has any there.
    assert not set(report.texts) - {"DIAGNOSTIC_EVENT.text"}
    assert_same_trace(capture, target)


def indexed(folder: Path) -> list[Path]:
    index = json.loads((folder / "INDEX.json").read_text(encoding="utf-8"))
    named = {entry["file"] for entry in index["profiles"] + index.get("timings", [])}
    assert named | {"INDEX.json"} == {path.name for path in folder.iterdir()}
    return [folder / entry["file"] for entry in index["profiles"]]


CAPTURES = [path for folder in SHIPPED for path in indexed(folder)]


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
def test_the_shipped_captures_identify_nobody(path, target):
    content = lzma.decompress(path.read_bytes())
    assert not FORBIDDEN.search(content)
    assert not re.search(rb"ENVIRONMENT_VARIABLE|WORKING_DIR|stdout\.log|Hostname|/tmp/|/opt/", content)
    plain = target.with_name("plain.sqlite")
    plain.write_bytes(content)
    assert not rows(plain, "SELECT 1 FROM sqlite_master WHERE name IN ('PROCESSES', 'ProcessStreams', 'ANALYSIS_FILE')")


@pytest.mark.parametrize(
    "path",
    [path for path in CAPTURES if "large_ctx1024_train" not in path.name and "whole" not in path.name],
    ids=lambda path: path.name,
)
def test_every_measured_step_of_a_shipped_capture_launched_the_same_kernels(path, tmp_path):
    plain = tmp_path / "plain.sqlite"
    plain.write_bytes(lzma.decompress(path.read_bytes()))
    counts = rows(
        plain,
        """SELECT count(*) FROM NVTX_EVENTS step
           JOIN CUPTI_ACTIVITY_KIND_RUNTIME call ON call.start BETWEEN step.start AND step.end
           JOIN CUPTI_ACTIVITY_KIND_KERNEL kernel ON kernel.correlationId = call.correlationId
           WHERE step.text = 'step' GROUP BY step.start""",
    )
    assert len(counts) >= 2
    assert len(set(counts)) == 1
