"""Compressed profiles: read like plain ones, bounded, and nothing left behind."""

from __future__ import annotations

import gzip
import lzma
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zstandard

from tests.readers.exports import Export
from warplens.errors import UnreadableInputError
from warplens.readers import limits, read
from warplens.readers import opening as compressed

if TYPE_CHECKING:
    from collections.abc import Callable

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
}


@pytest.fixture
def export(tmp_path: Path) -> bytes:
    small = Export()
    for number in range(300):
        small.call(number, number + 1, correlation=number)
        small.kernel(number + 1, number + 2, correlation=number)
    content = small.write(tmp_path / "plain.sqlite").read_bytes()
    (tmp_path / "plain.sqlite").unlink()
    return content


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("packer", PACKERS)
def test_a_compressed_profile_is_read_and_leaves_nothing_behind(
    tmp_path: Path, export: bytes, temporary: Path, packer: str
) -> None:
    path = tmp_path / f"profile.sqlite.{packer}"
    path.write_bytes(PACKERS[packer](export))
    trace = read(path)
    assert trace.kernels.height == 300
    assert trace.capture.source == path.name
    assert list(temporary.iterdir()) == []
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("packer", PACKERS)
def test_the_suffix_does_not_matter(tmp_path: Path, export: bytes, packer: str) -> None:
    path = tmp_path / "profile.sqlite"
    path.write_bytes(PACKERS[packer](export))
    assert read(path).kernels.height == 300


@pytest.mark.parametrize("packer", PACKERS)
def test_an_incomplete_one_is_refused_and_leaves_nothing_behind(
    tmp_path: Path, export: bytes, temporary: Path, packer: str
) -> None:
    path = tmp_path / "profile.sqlite"
    packed = PACKERS[packer](export)
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(UnreadableInputError, match=r"profile\.sqlite: .*(incomplete|cut off|empty)"):
        read(path)
    assert list(temporary.iterdir()) == []


def test_several_frames_one_after_the_other_are_one_file(tmp_path: Path, export: bytes) -> None:
    for packer, pack in PACKERS.items():
        path = tmp_path / packer
        path.write_bytes(pack(export[:5000]) + pack(export[5000:]))
        assert read(path).kernels.height == 300


def test_something_else_inside_is_named_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "counters.gz"
    path.write_bytes(gzip.compress(b"NVR\x00"))
    monkeypatch.setattr(compressed, "_unpack", lambda *_: pytest.fail("unpacked"))
    with pytest.raises(UnreadableInputError, match="Nsight Compute"):
        read(path)


def test_a_file_that_grows_without_end_is_stopped(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"SQLite format 3\x00" + bytes(20_000_000)))
    monkeypatch.setattr(limits, "UNSUSPICIOUS_BYTES", 100_000)
    with pytest.raises(UnreadableInputError, match=r"100 times its size.*WARPLENS_MAX_EXPANSION"):
        read(path)
    assert list(temporary.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_temporary_folder_is_said(
    tmp_path: Path, export: bytes, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "profile.sqlite.gz"
    path.write_bytes(gzip.compress(export))
    (temporary / "full").mkdir()
    (temporary / "full/profile.sqlite").symlink_to("/dev/full")
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: str(temporary / "full"))
    with pytest.raises(UnreadableInputError, match=r"No space left on device.*TMPDIR"):
        read(path)
    assert list(temporary.iterdir()) == []
