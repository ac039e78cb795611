"""Detection of a file's format by content; the `Reader` protocol of a format; and unpacking of compressed files."""

from __future__ import annotations

import gzip
import lzma
import shutil
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Generic, Protocol, TypeVar, cast

from warplens.errors import UnreadableInputError
from warplens.readers.limits import unpacked_bytes

if TYPE_CHECKING:
    import polars as pl

    from warplens.profile import Capture, Trace
    from warplens.readers.scrubbing import Removed

#: Bytes examined to detect the format: enough for the schema of an nsys export, which is at the begin of the file, and
#: for the output of a program before a table of counters.
HEAD_BYTES: Final = 2**20

#: Enough for every magic number below.
_MAGIC_BYTES: Final = 64

#: The command that exports a report (`profile.nsys-rep`, which follows it) to SQLite.
EXPORT: Final = "nsys export --type sqlite --output profile.sqlite"

#: Advice for files that are not exports, or damaged ones: Nsight Systems can always make an export again.
EXPORT_ADVICE: Final = f"Export the capture again: {EXPORT} profile.nsys-rep"


class Kind(Enum):
    """A kind of file content. The value is its description for people."""

    SQLITE = "an SQLite database"
    NSYS_REP = "an Nsight Systems report"
    GZIP = "a gzip file"
    XZ = "an xz file"
    ZSTD = "a Zstandard file"
    NCU_REP = "an Nsight Compute report"
    JSON = "JSON"
    ZIP = "a zip archive"
    HDF5 = "an HDF5 file"
    PARQUET = "a Parquet file"
    ARROW = "an Arrow file"
    PERFETTO = "a trace in Perfetto's format"
    TEXT = "text"
    EMPTY = "no bytes at all"
    UNKNOWN = "binary data of an unknown kind"


_MAGIC: Final = (
    (b"SQLite format 3\x00", Kind.SQLITE),
    (b"NVIDIA Tegra Profiler Report", Kind.NSYS_REP),  # .nsys-rep and .qdrep alike, 2020 to 2026
    (b"\x1f\x8b", Kind.GZIP),
    (b"\xfd7zXZ\x00", Kind.XZ),
    (b"\x28\xb5\x2f\xfd", Kind.ZSTD),
    (b"NVR\x00", Kind.NCU_REP),
    (b"PK\x03\x04", Kind.ZIP),
    (b"\x89HDF\r\n\x1a\n", Kind.HDF5),
    (b"PAR1", Kind.PARQUET),
    (b"ARROW1", Kind.ARROW),
)


#: Key of a field of number 1 that has a length, as protobuf writes it.
_PACKET: Final = b"\n"


def kind_of_bytes(head: bytes) -> Kind:
    """The kind of a file that begins with these bytes."""
    if not head:
        return Kind.EMPTY
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] in (b"{", b"["):
        return Kind.JSON
    if all(byte >= 0x20 or byte in b"\t\r\n\f" for byte in head[:_MAGIC_BYTES]):
        return Kind.TEXT
    return Kind.PERFETTO if _holds_packets(head) else Kind.UNKNOWN


#: Number of packets examined to distinguish a trace of Perfetto, which has no magic number, from other bytes.
_PACKETS: Final = 3


def _holds_packets(head: bytes) -> bool:
    """Whether the bytes begin with packets of Perfetto: fields of number 1 that are messages themselves."""
    if not head.startswith(_PACKET):
        return False
    from warplens.wire import WireError, fields_of

    packets = 0
    with suppress(WireError):  # the last packet may be cut
        for number, _, content, _ in islice(fields_of(head), _PACKETS):
            if number != 1 or not any(True for _ in fields_of(content)):
                return False
            packets += 1
    return packets > 0


def system_error(path: Path, error: OSError) -> UnreadableInputError:
    """The error for a file that the operating system cannot read."""
    found = f"the system cannot read it ({error.strerror or type(error).__name__})"
    return UnreadableInputError(path, found, "Copy the file to a local disk and try again")


def head_of(path: Path) -> bytes:
    """The first bytes of a file on the disk, at most `HEAD_BYTES`.

    Raises:
        UnreadableInputError: there is no such file, it is a folder, or it may not be read.
    """
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise UnreadableInputError(path, "this is not a regular file", "Save its output to a file first")
        with path.open("rb") as file:
            return file.read(HEAD_BYTES)
    except FileNotFoundError:
        raise absent(path) from None
    except IsADirectoryError:
        raise UnreadableInputError(path, "this is a folder", "Give the profiles in it one by one") from None
    except PermissionError:
        found = "this is a folder" if path.is_dir() else "permission to read it was denied"
        raise UnreadableInputError(path, found, f'Allow it first: chmod u+r "{path.name}"') from None
    except OSError as error:
        raise system_error(path, error) from None


def absent(path: Path) -> UnreadableInputError:
    """The error for a path that does not exist."""
    if str(path) == "-":
        return UnreadableInputError(path, "profiles are not read from standard input", "Give a file's path")
    return UnreadableInputError(path, "there is no such file or folder", "Check the path")


def kind_of(path: Path) -> Kind:
    """The kind of a file on the disk, without unpacking; errors as of `head_of`."""
    return kind_of_bytes(head_of(path))


Content = TypeVar("Content", covariant=True)  # noqa: PLC0105  # read as a word at every reader


@dataclass(frozen=True)
class Input:
    """A file as passed to a reader."""

    path: Path  #: on the disk: the file itself, or its unpacked copy
    known_as: Path  #: the file that the user named, for messages
    #: compression of `path` (a key of `UNPACKERS`), for readers that unpack themselves; else None
    compression: str | None = None
    #: called with a short description of the current action
    progress: Callable[[str], None] = field(default=lambda _: None)

    def tell(self, action: str) -> None:
        """Report the current action on this file."""
        self.progress(f"{self.known_as.name}: {action}")


@dataclass(frozen=True)
class ReadOptions:
    """Options of reading: for traces launch configurations, for counters the metrics and instances.

    For traces also the share of events to read, from their middle (folders of tables are read whole), and for reports
    and PyTorch traces whether to read nothing but GPU work and API calls, which are a part of the events.
    """

    launch_configuration: bool = True
    share: float = 1.0
    work_alone: bool = False
    metrics: Collection[str] | None = None
    instances: Collection[str] = ()


class Slices(Protocol):
    """A file of which a table is read in parts. See `warplens.readers.nsys.slices`."""

    @property
    def capture(self) -> Capture:
        """Facts about the file."""

    def tables(self, *names: str) -> Trace:
        """A trace with only these tables."""

    def counts(self, table: str, columns: Sequence[str], span: tuple[int | None, int | None]) -> pl.DataFrame:
        """How often each duration occurs, by the given columns."""


#: Memory of the program itself, at least.
_PROGRAM_BYTES: Final = 200_000_000


def surely_fits(size: int, each: int, memory: int) -> bool:
    """Whether a report on so many bytes or events needs no more memory, if each of them takes `each` bytes at most."""
    return memory >= _PROGRAM_BYTES + each * size


class Reader(Protocol[Content]):
    """One format: how it is recognised, read, and copied without what identifies people and machines."""

    #: kinds of content that the reader accepts if no reader recognises the file; it then reports the problem
    kinds: frozenset[Kind] = frozenset()
    unpacks: bool = False  #: whether it reads compressed files as they are, block by block

    def sniff(self, head: bytes) -> bool:
        """Whether a file with this begin of (unpacked) content certainly has this format; by default, by its kind."""
        return kind_of_bytes(head) in self.kinds

    def takes(self, folder: Path) -> bool:
        """Whether a folder is one profile of this format."""
        return False

    def read(self, file: Input, options: ReadOptions) -> Content:
        """The content of the file.

        Raises:
            UnreadableInputError: it is damaged or of another format; the message names the file, the problem and what
                to do.
        """

    def events_in(self, file: Input, memory: int) -> Mapping[str, int] | None:
        """The estimate that `warplens.readers.events_in` gives of a trace."""
        return None

    def slices(self, file: Input) -> AbstractContextManager[Slices | None]:
        """The file, to be read table by table; None if its GPU work can be read alone (`ReadOptions.work_alone`)."""
        return nullcontext()

    def original(self, file: Input, folder: Path) -> Input:
        """The file that a copy is made of and compared with: the file itself, or its conversion in `folder`."""
        return file

    def scrub(self, file: Input, copy: Path) -> Removed:
        """Fill the empty file `copy` with the data that analyses read, without identifying texts.

        Raises:
            UnreadableInputError: the file is damaged or of another format.
            ScrubError: identifying texts were left.
        """


def reader_for(readers: Sequence[Reader[Content]], head: bytes) -> Reader[Content] | None:
    """The first reader that recognises content with this begin, else the last one that accepts its kind."""
    if (recognising := next((reader for reader in readers if reader.sniff(head)), None)) is not None:
        return recognising
    kind = kind_of_bytes(head)
    return next((reader for reader in reversed(readers) if kind in reader.kinds), None)


def holds(path: Path, readers: Sequence[Reader[Content]]) -> bool:
    """Whether the file certainly has one of these formats, by its content; False if it cannot be opened."""
    try:
        head = content_head(path)
    except (UnreadableInputError, OSError):
        return False
    return any(reader.sniff(head) for reader in readers)


@dataclass(frozen=True)
class FormatRegistry(Generic[Content]):
    """Formats that can answer a question, and messages for files of other formats."""

    readers: tuple[Reader[Content], ...]
    mismatch_text: str
    advice: str
    advice_by_kind: Mapping[Kind, str]
    #: readers of formats that answer other questions, each with what they hold and advice
    others: tuple[tuple[Reader[object], str, str], ...] = ()

    def refusal(self, path: Path, kind: Kind) -> UnreadableInputError:
        """The error for a file of a kind that none of the formats has."""
        if kind is Kind.EMPTY:
            return UnreadableInputError(path, "the file is empty", "Copy, export or record it again")
        found = f"found {kind.value}, {self.mismatch_text}"
        return UnreadableInputError(path, found, self.advice_by_kind.get(kind, self.advice))

    @contextmanager
    def opened(self, path: Path, progress: Callable[[str], None] | None) -> Iterator[tuple[Reader[Content], Input]]:
        """The reader of a file, and the file as the reader needs it, unpacked into a temporary file if necessary.

        Raises:
            UnreadableInputError: it cannot be opened or unpacked, or has none of the formats.
        """
        report = progress or (lambda _: None)
        if (taking := self.taking(path)) is not None:
            yield taking, Input(path, path, None, report)
            return
        head = head_of(path)
        if (name := compression_of(head)) is None:
            yield self._reader(path, head), Input(path, path, None, report)
            return
        if head := peek(path, UNPACKERS[name]):  # else it is damaged, which unpacking reports
            reader = self._reader(path, head)  # before gigabytes of something else are unpacked
            if reader.unpacks:
                yield reader, Input(path, path, name, report)
                return
        with plain(path, report) as content:
            yield self._reader(path, head_of(content)), Input(content, path, None, report)

    def taking(self, path: Path) -> Reader[Content] | None:
        """The reader for which this folder is one profile; None for other folders, and for files."""
        return next((reader for reader in self.readers if reader.takes(path)), None) if path.is_dir() else None

    def reader_of(self, file: Input) -> Reader[Content]:
        """The reader of a file that is not compressed.

        Raises:
            UnreadableInputError: it has none of the formats.
        """
        return self._reader(file.known_as, head_of(file.path))

    def _reader(self, path: Path, head: bytes) -> Reader[Content]:
        reader = reader_for(self.readers, head)
        if reader is not None and reader.sniff(head):
            return reader
        for other, found, advice in self.others:
            if other.sniff(head):
                raise UnreadableInputError(path, f"found {found}, {self.mismatch_text}", advice)
        if reader is None:
            raise self.refusal(path, kind_of_bytes(head))
        return reader


_CHUNK_BYTES: Final = 2**20

Unpacker = Callable[[BinaryIO], BinaryIO]


def _open_zstd(packed: BinaryIO) -> BinaryIO:
    import zstandard

    return cast(BinaryIO, zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True))


#: Functions that unpack each compression, by its name.
UNPACKERS: Final[Mapping[str, Unpacker]] = {
    "gzip": lambda packed: cast(BinaryIO, gzip.GzipFile(fileobj=packed)),
    "xz": lambda packed: cast(BinaryIO, lzma.LZMAFile(packed)),  # noqa: SIM115  # closed by the caller
    "zstd": _open_zstd,
}
_COMPRESSED: Final = {Kind.GZIP: "gzip", Kind.XZ: "xz", Kind.ZSTD: "zstd"}


def compression_of(head: bytes) -> str | None:
    """The compression of a file with this begin, a key of `UNPACKERS`; None if it is not compressed."""
    return _COMPRESSED.get(kind_of_bytes(head))


#: Bytes of the begin that are unpacked at once: damage in them hides them all.
_PEEKED_BYTES: Final = 2**12


def peek(path: Path, unpacker: Unpacker) -> bytes:
    """The first bytes of the unpacked content, at most `HEAD_BYTES`; of a damaged file those before the damage."""
    head = bytearray()
    with path.open("rb") as packed, suppress(*_damage_errors()):
        stream = unpacker(packed)
        while len(head) < HEAD_BYTES and (part := stream.read(_PEEKED_BYTES)):
            head += part
    return bytes(head)


def content_head(path: Path) -> bytes:
    """The first bytes of the content, unpacked if it is compressed; errors as of `head_of`."""
    head = head_of(path)
    return head if (name := compression_of(head)) is None else peek(path, UNPACKERS[name])


@contextmanager
def plain(path: Path, progress: Callable[[str], None] = lambda _: None) -> Iterator[Path]:
    """The file itself, or a temporary file with its unpacked content; errors as of `unpacked`."""
    if (name := compression_of(head_of(path))) is None:
        yield path
        return
    progress(f"{path.name}: unpacking")
    with unpacked(path, UNPACKERS[name]) as content:
        yield content


@contextmanager
def unpacked(path: Path, unpacker: Unpacker) -> Iterator[Path]:
    """A temporary file with the content of the compressed file `path`, outside its folder; removed at the end.

    Raises:
        UnreadableInputError: the file is damaged or incomplete, it expands beyond
            `limits.unpacked_bytes`, or the temporary folder has no room for it.
    """
    folder = Path(tempfile.mkdtemp(prefix="warplens-"))
    try:
        target = folder / path.stem
        _unpack(path, unpacker, target)
        yield target
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unpack(path: Path, unpacker: Unpacker, target: Path) -> None:
    most, limit = unpacked_bytes(path.stat().st_size)
    size = 0
    try:
        with path.open("rb") as packed, target.open("wb") as file:
            stream = unpacker(packed)
            while chunk := _next_chunk(stream, path):
                size += len(chunk)
                if size > most:
                    raise limit.refused(path, f"unpacking it gives {most:,} bytes and on,")
                file.write(chunk)
    except OSError as error:
        found = f"it cannot be unpacked into the temporary folder ({error.strerror})"
        raise UnreadableInputError(path, found, "Set TMPDIR to a folder with more room") from None


def _next_chunk(stream: BinaryIO, path: Path) -> bytes:
    try:
        return stream.read(_CHUNK_BYTES)
    except _damage_errors():
        found = "the compressed file is damaged or incomplete"
        raise UnreadableInputError(path, found, "Copy or download it again") from None


def _damage_errors() -> tuple[type[Exception], ...]:
    import zstandard

    return (EOFError, OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError)
