"""Choice of the reader of a report (.nsys-rep, .qdrep): this package's own, or conversion by an installed `nsys`.

`nsys` is used where the own reader does not know the report's storage format. It converts the report to SQLite once,
into a cache in the user's cache folder, never beside the report. The key is the hash of the report's content and the
version of nsys, so that a renamed report is not converted again, but a changed one is, and so is one that a newer nsys
may read better. The cache keeps only what the readers need, as a full conversion also holds the program's environment,
hosts, users and command lines. Only its owner can read it, its size is bounded, and `warplens cache` clears it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from warplens.errors import UnreadableInputError
from warplens.patterns import lazy_pattern
from warplens.profile import Note, NoteLevel, Trace
from warplens.readers.limits import CACHE_BYTES
from warplens.readers.opening import EXPORT, Input, ReadOptions

_DOWNLOAD = "https://developer.nvidia.com/nsight-systems/get-started"

#: Where NVIDIA's installers put nsys, searched in addition to the PATH.
_USUAL_PLACES = (
    "/opt/nvidia/nsight-systems*/*/bin/nsys",
    "/opt/nvidia/nsight-systems*/bin/nsys",
    "/opt/nvidia/nsight-compute/*/host/target-linux-x64/nsys",
    "/usr/local/cuda*/bin/nsys",
    "/Applications/NVIDIA Nsight Systems*.app/Contents/target-macos-*/nsys",
    "C:/Program Files/NVIDIA Corporation/Nsight Systems*/target-windows-x64/nsys.exe",
)

_VERSION_TIMEOUT_S = 60

#: Suffix of cached conversions that hold nothing but what is needed.
_KEPT = "-kept.sqlite"

_PERCENT = lazy_pattern(r"(\d{1,3})%")
_PERCENT_STEP = 10

#: Characters kept of the output of nsys: its reason is at the end, after the progress bar.
_OUTPUT_CHARACTERS = 1_000


@dataclass(frozen=True)
class Nsys:
    """An installed nsys: its program and version."""

    program: Path
    version: tuple[int, ...]

    @property
    def version_text(self) -> str:
        """The version as NVIDIA writes it, for example `2025.3.2`."""
        return ".".join(map(str, self.version))


def converted(file: Input) -> Path:
    """The SQLite export of a report, from the cache or made now."""
    nsys = _needed_nsys(file)
    target = _cache_folder(file.known_as) / f"{_content_hash(file.path)}-nsys-{nsys.version_text}{_KEPT}"
    if target.is_file():
        file.tell("using its conversion from the cache")
        target.touch()
        return target
    with tempfile.TemporaryDirectory(prefix=".converting-", dir=target.parent) as folder:
        from warplens.readers.nsys.scrub import keep_needed

        fresh, kept = Path(folder, "export.sqlite"), Path(folder, "kept.sqlite")
        convert(file, fresh)
        kept.touch(0o600)
        keep_needed(replace(file, path=fresh), kept)
        kept.replace(target)  # atomic: other processes see the complete file or none
    _prune(target)
    return target


def convert(file: Input, target: Path) -> None:
    """Make the full SQLite export of a report, including everything about people and machines."""
    nsys = _needed_nsys(file)
    file.tell(f"converting with nsys {nsys.version_text}")
    failure_output = _export(nsys, file, target)
    if failure_output is not None or not target.is_file():
        raise _failed(file.known_as, nsys, _version_in(file.path) or _version_in_output(failure_output or ""))
    target.chmod(0o600)


def _needed_nsys(file: Input) -> Nsys:
    nsys = find_nsys()
    if nsys is None:
        recorded_with = _version_in(file.path)
        advice = f'Where nsys is installed: {EXPORT} "{file.known_as.name}"; then give profile.sqlite'
        version = f" of nsys {recorded_with}" if recorded_with else ""
        found = f"a report{version}, which needs an installed nsys to be converted, and none was found"
        raise UnreadableInputError(file.known_as, found, _export_beside(file.known_as) or advice)
    return nsys


def find_nsys() -> Nsys | None:
    """The nsys to use: the one that $WARPLENS_NSYS or $NSYS names, else the newest on the PATH and in usual places."""
    named = os.environ.get("WARPLENS_NSYS") or os.environ.get("NSYS")
    candidates = [Path(named)] if named else list(_installed())
    installed = [Nsys(program, version) for program in candidates if (version := _version_of(program)) is not None]
    return max(installed, key=lambda nsys: nsys.version, default=None)


def _installed() -> Iterator[Path]:
    on_path = shutil.which("nsys")
    if on_path:
        yield Path(on_path)
    for pattern in _USUAL_PLACES:
        anchor = Path(pattern).anchor
        if anchor and Path(anchor).is_dir():
            yield from sorted(Path(anchor).glob(pattern[len(anchor) :]))


def _version_of(program: Path) -> tuple[int, ...] | None:
    try:
        answer = subprocess.run(  # noqa: S603  # a program that the user installed or named
            [str(program), "--version"], capture_output=True, timeout=_VERSION_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(rb"version (\d+(?:\.\d+)+)", answer.stdout)
    return tuple(map(int, match.group(1).split(b"."))) if match else None


def _version_in(path: Path) -> str | None:
    from warplens.readers.nsys.report_container import version_in

    with path.open("rb") as file:
        return version_in(file.read(64))


def _content_hash(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()


def cache_folder() -> Path | None:
    """The folder of cached conversions, whether it exists or not; None if there is no home folder."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return folder / "warplens" / "nsys-rep"


def cached() -> list[Path]:
    """Cached conversions and leftovers of interrupted ones, most recently used first."""
    folder = cache_folder()
    entries = list(folder.iterdir()) if folder is not None and folder.is_dir() else []
    return sorted(entries, key=lambda path: path.lstat().st_mtime, reverse=True)


def clear_cache() -> None:
    """Remove all cached conversions and leftovers."""
    for path in cached():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _cache_folder(known_as: Path) -> Path:
    advice = "Set XDG_CACHE_HOME to a folder that you may write to"
    folder = cache_folder()
    if folder is None:
        raise UnreadableInputError(known_as, "there is no home folder to keep its conversion in", advice)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # names in a profile are private
        folder.chmod(0o700)  # also a folder that already existed
    except OSError as error:
        found = f"its conversion cannot be kept in the cache folder ({error.strerror})"
        raise UnreadableInputError(known_as, found, advice) from None
    return folder


def _prune(newest: Path) -> None:
    """Remove the least recently used conversions until the cache is within its bound; never the newest.

    Conversions made by versions before 0.2 are always removed: they hold the environment.
    """
    for path in newest.parent.glob("*-nsys-*.sqlite"):
        if not path.name.endswith(_KEPT):
            path.unlink(missing_ok=True)
    by_last_use = sorted(
        (
            (path.stat().st_mtime, path.stat().st_size, path)
            for path in newest.parent.glob("*.sqlite")
            if path != newest
        ),
        reverse=True,
    )
    total = newest.stat().st_size
    for _, size, path in by_last_use:
        total += size
        if total > CACHE_BYTES.value:
            path.unlink(missing_ok=True)


def _version_in_output(output: str) -> str | None:
    """The version that recorded a report, from the error of an nsys too old for it."""
    match = re.search(r"created in Nsight Systems version \(?(\d+\.\d+\.\d+)", output)
    return match[1] if match else None


def _export(nsys: Nsys, file: Input, target: Path) -> str | None:
    """Run the export. None on success, else the last part of the output.

    nsys draws a progress bar with a percentage on its error stream, repeatedly on one line.
    """
    command = [str(nsys.program), "export", "--type", "sqlite", "--output", str(target), str(file.path.resolve())]
    try:
        process = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=target.parent
        )
    except OSError:
        return ""
    output = ""
    with process:
        shown_percent = 0
        try:
            stream = process.stderr
            while stream is not None and (chunk := os.read(stream.fileno(), 4096)):
                text = chunk.decode("utf-8", "replace")
                output = (output + text)[-_OUTPUT_CHARACTERS:]
                percents = _PERCENT.findall(text)
                if percents and int(percents[-1]) >= shown_percent + _PERCENT_STEP:
                    shown_percent = int(percents[-1])
                    file.tell(f"converting, {shown_percent} %")
        except BaseException:
            process.kill()
            raise
    return output if process.returncode else None


def _failed(known_as: Path, nsys: Nsys, recorded_with: str | None) -> UnreadableInputError:
    newer = recorded_with is not None and tuple(map(int, recorded_with.split("."))) > nsys.version[:3]
    if newer:
        found = (
            f"recorded with nsys {recorded_with}, which the installed nsys {nsys.version_text} is too old to convert"
        )
        advice = f"Install nsys {recorded_with} or newer ({_DOWNLOAD}) and set NSYS to it, or export there: {EXPORT}"
    else:
        or_newer = "" if recorded_with else ", or by a newer nsys"
        found = f"nsys {nsys.version_text} could not convert it; it is damaged or was recorded incompletely{or_newer}"
        advice = f'See what nsys says: {EXPORT} "{known_as.name}"; else record the program again'
    return UnreadableInputError(known_as, found, _export_beside(known_as) or advice)


def _export_beside(known_as: Path) -> str | None:
    """Advice to use the SQLite export beside the report, if there is one."""
    export = known_as.with_suffix(".sqlite")
    return f"Give its SQLite export, which lies beside it: {export.name}" if export.is_file() else None


#: Tolerance in comparing ages. Copying and unpacking writes files in any order, some seconds apart; a report that was
#: recorded again is minutes newer than the export of the earlier one.
_AGE_S = 60.0

_EXPORT_SUFFIX, _REPORT_SUFFIXES = ".sqlite", (".nsys-rep", ".qdrep")


def read_nsys_rep(file: Input, options: ReadOptions) -> Trace:
    """The trace of an Nsight Systems report; a note says if an installed nsys had to convert it.

    A converted report is read whole, since how much memory it takes was not known in advance.

    Raises:
        UnreadableInputError: the report is damaged, or its format is unknown and no installed nsys can convert it.
    """
    from warplens.readers.nsys.report import read_nsys_report
    from warplens.readers.nsys.report_container import NotUnderstoodError

    try:
        return read_nsys_report(file, options)
    except NotUnderstoodError as error:
        reason = error.reason
    from warplens.readers.nsys.export import read_nsys_sqlite

    file.tell(reason)
    trace = read_nsys_sqlite(replace(file, path=converted(file)), replace(options, share=1.0))
    text = f"The report was converted by the installed nsys, because {reason}."
    return _with_note(trace, Note("converted-report", NoteLevel.INFO, text, None))


def _with_note(trace: Trace, note: Note) -> Trace:
    return replace(trace, capture=replace(trace.capture, notes=(*trace.capture.notes, note)))


def with_note_on_age(trace: Trace, path: Path) -> Trace:
    """The trace, with a note if the export beside a report is older than the report and so of an earlier recording.

    Args:
        path: the file that the user named; a trace of other than a report or an export is returned as it is.
    """
    is_export = path.suffix == _EXPORT_SUFFIX
    if not is_export and path.suffix not in _REPORT_SUFFIXES:
        return trace
    report_time = _newest_time([path.with_suffix(suffix) for suffix in _REPORT_SUFFIXES] if is_export else [path])
    export_time = _newest_time([path.with_suffix(_EXPORT_SUFFIX)])
    if export_time is None or report_time is None or export_time + _AGE_S >= report_time:
        return trace
    if is_export:
        text = f"The report beside it ({path.stem}.nsys-rep) is newer than this export: it is another recording."
        note = Note("older-export", NoteLevel.WARNING, text, "Give the report itself, or export it again")
    else:
        text = f"The export beside it ({path.stem}.sqlite) is older than this report: it is of another recording."
        note = Note("older-export", NoteLevel.INFO, text, "Remove the export, or make it again")
    return _with_note(trace, note)


def _newest_time(files: list[Path]) -> float | None:
    """Modification time of the newest of these files; None if none exists."""
    try:
        return max((file.stat().st_mtime for file in files if file.is_file()), default=None)
    except OSError:
        return None
