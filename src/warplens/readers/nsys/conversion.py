"""Which way a report (.nsys-rep, .qdrep) is read: by this package's own reader, or by an installed `nsys`.

`nsys` is asked where the own reader does not know how a report is stored. It converts it to SQLite, once, into a cache.
The cache lies in the user's cache folder, never beside the report, under the hash of the report's content and the
version of nsys, so that a renamed report is not converted again and a changed one, or one that a newer nsys can read
better, is. It keeps what the readers need: a conversion holds the environment of the program, hosts, users and command
lines as well. It is the owner's alone, and bounded; `warplens cache` clears it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from warplens.errors import UnreadableInputError
from warplens.patterns import lazy_pattern
from warplens.profile import Note, NoteLevel, Trace
from warplens.readers.limits import CACHE_BYTES

_EXPORT = "nsys export --type sqlite --output profile.sqlite"
_DOWNLOAD = "https://developer.nvidia.com/nsight-systems/get-started"

#: Where NVIDIA's installers put nsys, beside the PATH.
_USUAL_PLACES = (
    "/opt/nvidia/nsight-systems*/*/bin/nsys",
    "/opt/nvidia/nsight-systems*/bin/nsys",
    "/opt/nvidia/nsight-compute/*/host/target-linux-x64/nsys",
    "/usr/local/cuda*/bin/nsys",
    "/Applications/NVIDIA Nsight Systems*.app/Contents/target-macos-*/nsys",
    "C:/Program Files/NVIDIA Corporation/Nsight Systems*/target-windows-x64/nsys.exe",
)

_VERSION_TIMEOUT_S = 60

#: How names of conversions end that hold what is needed and nothing else.
_KEPT = "-kept.sqlite"

_PERCENT = lazy_pattern(r"(\d{1,3})%")
_PERCENT_STEP = 10

#: Of what nsys says, in characters: its reason stands at the end, after the bar.
_LAST_WORDS = 1_000


@dataclass(frozen=True)
class Nsys:
    """An installed nsys: its program and its version, as numbers."""

    program: Path
    version: tuple[int, ...]

    @property
    def version_text(self) -> str:
        """The version as NVIDIA writes it."""
        return ".".join(map(str, self.version))


def converted(path: Path, known_as: Path, report: Callable[[str], None]) -> Path:
    """The SQLite export of a report, out of the cache or made now."""
    nsys = _needed_nsys(path, known_as)
    target = _cache_folder(known_as) / f"{_content_hash(path)}-nsys-{nsys.version_text}{_KEPT}"
    if target.is_file():
        report(f"{known_as.name}: using its conversion from the cache")
        target.touch()
        return target
    with tempfile.TemporaryDirectory(prefix=".converting-", dir=target.parent) as folder:
        from warplens.readers.nsys.scrub import keep_needed

        fresh, kept = Path(folder, "export.sqlite"), Path(folder, "kept.sqlite")
        convert(path, known_as, fresh, report)
        kept.touch(0o600)
        keep_needed(fresh, known_as, kept)
        kept.replace(target)  # atomic: whoever looks into the cache meanwhile sees all of it or nothing
    _prune(target)
    return target


def convert(path: Path, known_as: Path, target: Path, report: Callable[[str], None]) -> None:
    """Makes the whole SQLite export of a report, everything about people and machines in it included."""
    nsys = _needed_nsys(path, known_as)
    report(f"{known_as.name}: converting with nsys {nsys.version_text}")
    failed = _export(nsys, path, target, lambda percent: report(f"{known_as.name}: converting, {percent} %"))
    if failed is not None or not target.is_file():
        raise _failed(known_as, nsys, _version_in(path) or _version_told(failed or ""))
    target.chmod(0o600)


def _needed_nsys(path: Path, known_as: Path) -> Nsys:
    nsys = find_nsys()
    if nsys is None:
        raise _no_nsys(known_as, _version_in(path))
    return nsys


def find_nsys() -> Nsys | None:
    """The nsys to use: the one that $NSYS names, else the newest of those on the PATH and in the usual places."""
    chosen = os.environ.get("NSYS")
    candidates = [Path(chosen)] if chosen else list(_installed())
    found = [Nsys(program, version) for program in candidates if (version := _version_of(program)) is not None]
    return max(found, key=lambda nsys: nsys.version, default=None)


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
    found = re.search(rb"version (\d+(?:\.\d+)+)", answer.stdout)
    return tuple(map(int, found.group(1).split(b"."))) if found else None


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
    """Where conversions are kept, whether it exists or not; None where the system knows no home folder."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return folder / "warplens" / "nsys-rep"


def cached() -> list[Path]:
    """The conversions that are kept, those used last first, and what interrupted ones left."""
    folder = cache_folder()
    found = list(folder.iterdir()) if folder is not None and folder.is_dir() else []
    return sorted(found, key=lambda path: path.lstat().st_mtime, reverse=True)


def clear_cache() -> None:
    """Removes all of them."""
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
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # names in a profile are nobody else's business
        folder.chmod(0o700)  # also one that was there already
    except OSError as error:
        found = f"its conversion cannot be kept in the cache folder ({error.strerror})"
        raise UnreadableInputError(known_as, found, advice) from None
    return folder


def _prune(newest: Path) -> None:
    """Removes the conversions that were used longest ago, until the cache is within its bound; never the newest.

    And those of versions before 0.2, whatever their age: they hold the environment.
    """
    for path in newest.parent.glob("*-nsys-*.sqlite"):
        if not path.name.endswith(_KEPT):
            path.unlink(missing_ok=True)
    used = sorted(
        (
            (path.stat().st_mtime, path.stat().st_size, path)
            for path in newest.parent.glob("*.sqlite")
            if path != newest
        ),
        reverse=True,
    )
    total = newest.stat().st_size
    for _, size, path in used:
        total += size
        if total > CACHE_BYTES.value:
            path.unlink(missing_ok=True)


def _version_told(words: str) -> str | None:
    """The version that wrote a report, as an nsys says that cannot read it: `created in Nsight Systems version (…`."""
    found = re.search(r"created in Nsight Systems version \(?(\d+\.\d+\.\d+)", words)
    return found[1] if found else None


def _export(nsys: Nsys, path: Path, target: Path, progress: Callable[[int], None]) -> str | None:
    """The last words of an export that failed; None where it did not.

    nsys draws a bar with a percentage on its error stream, over and over on one line.
    """
    command = [str(nsys.program), "export", "--type", "sqlite", "--output", str(target), str(path.resolve())]
    try:
        process = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=target.parent
        )
    except OSError:
        return ""
    words = ""
    with process:
        shown = 0
        try:
            stream = process.stderr
            while stream is not None and (drawn := os.read(stream.fileno(), 4096)):
                text = drawn.decode("utf-8", "replace")
                words = (words + text)[-_LAST_WORDS:]
                percents = _PERCENT.findall(text)
                if percents and int(percents[-1]) >= shown + _PERCENT_STEP:
                    shown = int(percents[-1])
                    progress(shown)
        except BaseException:
            process.kill()
            raise
    return words if process.returncode else None


def _no_nsys(known_as: Path, recorded_with: str | None) -> UnreadableInputError:
    advice = f'Where nsys is installed: {_EXPORT} "{known_as.name}"; then give profile.sqlite'
    version = f" of nsys {recorded_with}" if recorded_with else ""
    found = f"a report{version}, which needs an installed nsys to be converted, and none was found"
    return UnreadableInputError(known_as, found, _export_beside(known_as) or advice)


def _failed(known_as: Path, nsys: Nsys, recorded_with: str | None) -> UnreadableInputError:
    newer = recorded_with is not None and tuple(map(int, recorded_with.split("."))) > nsys.version[:3]
    if newer:
        found = (
            f"recorded with nsys {recorded_with}, which the installed nsys {nsys.version_text} is too old to convert"
        )
        advice = f"Install nsys {recorded_with} or newer ({_DOWNLOAD}) and set NSYS to it, or export there: {_EXPORT}"
    else:
        found = f"nsys {nsys.version_text} could not convert it; the report is damaged or was recorded incompletely"
        advice = f'See what nsys says: {_EXPORT} "{known_as.name}"; else record the program again'
    return UnreadableInputError(known_as, found, _export_beside(known_as) or advice)


def _export_beside(known_as: Path) -> str | None:
    beside = known_as.with_suffix(".sqlite")
    return f"Give its SQLite export, which lies beside it: {beside.name}" if beside.is_file() else None


#: Copying and unpacking files gives them times in any order, some seconds apart; a report that was recorded again is
#: minutes younger than the export of the earlier one.
_AGE_S = 60.0

_EXPORTS, _REPORTS = (".sqlite",), (".nsys-rep", ".qdrep")


def read_nsys_rep(
    path: Path, known_as: Path, report: Callable[[str], None], launch_configuration: bool = True
) -> Trace:
    """The trace that a report of Nsight Systems holds; a note says so where an installed nsys had to convert it.

    Args:
        known_as: the file that the user named; `path` may be unpacked from it.
        report: told in a few words what is being done.
        launch_configuration: whether to read how kernels were launched.

    Raises:
        UnreadableInputError: the report is damaged; or it is stored in a way that only nsys knows, and there is no nsys
            that can convert it.
    """
    from warplens.readers.nsys.report import read_nsys_report
    from warplens.readers.nsys.report_container import NotUnderstoodError

    try:
        return read_nsys_report(path, known_as, report, launch_configuration)
    except NotUnderstoodError as error:
        reason = error.reason
    from warplens.readers.nsys.export import read_nsys_sqlite

    report(f"{known_as.name}: {reason}")
    trace = read_nsys_sqlite(converted(path, known_as, report), known_as, report, launch_configuration)
    text = f"The report was converted by the installed nsys, because {reason}."
    note = Note("converted-report", NoteLevel.INFO, text, None)
    return replace(trace, capture=replace(trace.capture, notes=(*trace.capture.notes, note)))


def with_note_on_age(trace: Trace, path: Path) -> Trace:
    """The trace, with a note where the export beside a report is older than it, and so of an earlier recording.

    Args:
        path: the file that the user named, a report or an export; others are left as they are.
    """
    if path.suffix in _EXPORTS:
        exports, reports = [path], [path.with_suffix(suffix) for suffix in _REPORTS]
    elif path.suffix in _REPORTS:
        exports, reports = [path.with_suffix(suffix) for suffix in _EXPORTS], [path]
    else:
        return trace
    export, report = _written(exports), _written(reports)
    if export is None or report is None or export + _AGE_S >= report:
        return trace
    if path.suffix in _EXPORTS:
        text = f"The report beside it ({path.stem}.nsys-rep) is newer than this export: it is another recording."
        note = Note("older-export", NoteLevel.WARNING, text, "Give the report itself, or export it again")
    else:
        text = f"The export beside it ({path.stem}.sqlite) is older than this report: it is of another recording."
        note = Note("older-export", NoteLevel.INFO, text, "Remove the export, or make it again")
    return replace(trace, capture=replace(trace.capture, notes=(*trace.capture.notes, note)))


def _written(files: list[Path]) -> float | None:
    """When the newest of these files was written; None if none of them is there."""
    try:
        return max((file.stat().st_mtime for file in files if file.is_file()), default=None)
    except OSError:
        return None
