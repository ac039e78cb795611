"""Input that is no profile, not all of one, or compressed: one clear line, never another exception."""

from __future__ import annotations

import gzip
import json
import lzma
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import zstandard

from tests.readers.exports import Export
from warplens.errors import UnreadableInputError
from warplens.readers import limits, read
from warplens.readers import opening as compressed


def _refused(path: Path) -> str:
    with pytest.raises(UnreadableInputError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(f"{path.name}: ")
    assert "\n" not in message
    assert str(path.parent) not in message  # folders carry user names
    assert caught.value.found
    assert caught.value.advice
    return message


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file is empty. Copy, export or record it again"),
        (b"time,name\n1,gemm\n", "found text"),
        (b"\x7fELF\x02\x01\x01", "binary data of an unknown kind"),
        (b"NVR\x00rest", "an Nsight Compute report"),
        (json.dumps({"traceEvents": []}).encode(), "this Chrome trace has no events"),
        (b'\n[{"ph": "X"}]', "a Chrome trace, but of another program"),
        (b'{"a": 1}\n{"a": 2}\n', "JSON"),
        (b"PK\x03\x04zip", "a zip archive"),
        (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
        (b"PAR1", "a Parquet file"),
        (b"\n\x02\x40\x01\n\x02\x40", "a trace in Perfetto's format"),
        (b"\n\x02\x40\x01\x12\x00", "binary data of an unknown kind"),
        (b"SQLite format 3\x00", "within the SQLite header"),
        (b'"ID","Process ID","Kernel Name","Metric Name"\n"0","1","k","m"\n', "Ask for its counters instead"),
        (b'{"schema": "warplens.measurements/1"}', "warplens bench show FILE, or warplens sweep report FILE"),
        (b'{"traceEvents": [1, 2, 3]}', "none of its events can be read"),
        (b'{"traceEvents": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", "none of its events can be read"),
        (b'{"traceEvents": [{"name": "' + b"x" * 9_000_000 + b'"}]}', "objects of at most 4 MiB"),
    ],
)
def test_a_file_of_another_kind_is_named_for_what_it_is(tmp_path, content, said):
    path = tmp_path / "profile.sqlite"
    path.write_bytes(content)
    assert said in _refused(path)


def test_a_trace_that_perfettos_own_library_wrote_is_named(tmp_path):
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema

    trace = schema.Trace()
    for when in range(1000, 1010):
        packet = trace.packet.add(timestamp=when, trusted_packet_sequence_id=1)
        packet.track_event.name = "aten::mm"
    path = tmp_path / "profile.pftrace"
    path.write_bytes(trace.SerializeToString())
    assert "found a trace in Perfetto's format" in _refused(path)


def test_the_current_folder_has_a_name():
    assert str(UnreadableInputError(Path(), "this is a folder", "Name a file")).startswith(".: this is a folder")


def test_a_file_that_does_not_exist(tmp_path):
    assert "there is no such file" in _refused(tmp_path / "profile.sqlite")


def test_a_folder(tmp_path):
    assert "this is a folder" in _refused(tmp_path)


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = Export().write(tmp_path / "profile.sqlite")

    def denied(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", denied)  # file modes do not stop root, who runs many test machines
    assert 'permission to read it was denied. Allow it first: chmod u+r "profile.sqlite"' in _refused(path)


@pytest.mark.parametrize(
    ("tables", "found"),
    [
        (["photos"], "an SQLite database, but not an Nsight Systems export"),
        (["StringTable", "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL"], "an nvprof database"),
    ],
)
def test_another_sqlite_database(tmp_path, tables, found):
    path = tmp_path / "photos.sqlite"
    with closing(sqlite3.connect(path)) as file:
        for table in tables:
            file.execute(f"CREATE TABLE {table} (_id_ INTEGER, value TEXT)")
    assert found in _refused(path)


@pytest.mark.slow
def test_real_files_of_other_kinds(captured):
    assert "not an Nsight Systems export" in _refused(captured("nsys/not_an_nsys_file.sqlite"))
    assert "an Nsight Compute report" in _refused(captured("ncu/truncated.ncu-rep"))
    assert "found a table of Nsight Compute" in _refused(captured("ncu/error_only.csv"))
    assert "the JSON output of rocprofv3" in _refused(captured("kineto/not_a_chrome_trace_rocprof.json.gz"))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.999])
def test_a_file_that_was_cut_off(tmp_path, captured, share):
    whole = captured("nsys/h200_lm_small_train.sqlite").read_bytes()
    path = tmp_path / "profile.sqlite"
    path.write_bytes(whole[: int(len(whole) * share)])
    assert f"{int(len(whole) * share):,} of {len(whole):,} bytes are there" in _refused(path)


def test_a_page_of_garbage_in_the_middle_of_a_table(tmp_path):
    export = Export()
    for number in range(2000):
        export.kernel(number, number + 1, correlation=number)
    path = export.write(tmp_path / "profile.sqlite")
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 4096] = b"\xa5" * 4096
    path.write_bytes(content)
    assert "the SQLite database is damaged" in _refused(path)


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
}


@pytest.fixture
def export(tmp_path):
    small = Export()
    for number in range(300):
        small.call(number, number + 1, correlation=number)
        small.kernel(number + 1, number + 2, correlation=number)
    content = small.write(tmp_path / "plain.sqlite").read_bytes()
    (tmp_path / "plain.sqlite").unlink()
    return content


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("packer", PACKERS)
def test_a_compressed_profile_is_read_and_leaves_nothing_behind(tmp_path, export, temporary, packer):
    path = tmp_path / f"profile.sqlite.{packer}"
    path.write_bytes(PACKERS[packer](export))
    trace = read(path)
    assert trace.kernels.height == 300
    assert trace.capture.source == path.name
    assert list(temporary.iterdir()) == []
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("packer", PACKERS)
def test_the_suffix_does_not_matter(tmp_path, export, packer):
    path = tmp_path / "profile.sqlite"
    path.write_bytes(PACKERS[packer](export))
    assert read(path).kernels.height == 300


@pytest.mark.parametrize("packer", PACKERS)
def test_an_incomplete_one_is_refused_and_leaves_nothing_behind(tmp_path, export, temporary, packer):
    path = tmp_path / "profile.sqlite"
    packed = PACKERS[packer](export)
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(UnreadableInputError, match=r"profile\.sqlite: .*(incomplete|cut off|empty)"):
        read(path)
    assert list(temporary.iterdir()) == []


def test_several_frames_one_after_the_other_are_one_file(tmp_path, export):
    for packer, pack in PACKERS.items():
        path = tmp_path / packer
        path.write_bytes(pack(export[:5000]) + pack(export[5000:]))
        assert read(path).kernels.height == 300


def test_something_else_inside_is_named_before_it_is_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "counters.gz"
    path.write_bytes(gzip.compress(b"NVR\x00"))
    monkeypatch.setattr(compressed, "_unpack", lambda *_: pytest.fail("unpacked"))
    with pytest.raises(UnreadableInputError, match="Nsight Compute"):
        read(path)


def test_a_file_that_grows_without_end_is_stopped(tmp_path, temporary, monkeypatch):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"SQLite format 3\x00" + bytes(20_000_000)))
    monkeypatch.setattr(limits, "UNSUSPICIOUS_BYTES", 100_000)
    with pytest.raises(UnreadableInputError, match=r"100 times its size.*WARPLENS_MAX_EXPANSION"):
        read(path)
    assert list(temporary.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_temporary_folder_is_said(tmp_path, export, temporary, monkeypatch):
    path = tmp_path / "profile.sqlite.gz"
    path.write_bytes(gzip.compress(export))
    (temporary / "full").mkdir()
    (temporary / "full/profile.sqlite").symlink_to("/dev/full")
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: str(temporary / "full"))
    with pytest.raises(UnreadableInputError, match=r"No space left on device.*TMPDIR"):
        read(path)
    assert list(temporary.iterdir()) == []
