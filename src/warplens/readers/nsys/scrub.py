"""A scrubbed copy of an Nsight Systems export that can be shared.

An export holds far more than a timeline: all environment variables of the program (tokens included), its command line
and working folder, host and user names, its output, the files it opened, and the names of all processes of the machine.
The copy is a new file that contains only what the analyses read: tables and settings not named here are left out. Texts
that are kept are searched for paths, addresses and the names and values just listed. Rows of events are copied
unchanged.

Nothing is ever written to the copy and deleted again, so that no free page of it can hold a secret. In addition, the
copy's raw bytes are searched at the end.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from warplens.readers.nsys.capture import LOST_EVENTS, MAY_LACK_EVENTS
from warplens.readers.nsys.tables import SOURCES
from warplens.readers.opening import Input
from warplens.readers.scrubbing import Removed, search_copy
from warplens.readers.sqlite import SqliteFile, looks_like_nsys, quoted
from warplens.secrets import Cleaner, Secrets


def _words(text: str) -> set[str]:
    return set(text.split())


#: Tables that are kept in addition to those of `SOURCES`: they explain them. Unknown tables are left out whatever their
#: name begins with.
_KEPT_TABLES = frozenset(source.table for source in SOURCES) | _words(
    """
    StringIds ANALYSIS_DETAILS DIAGNOSTIC_EVENT ThreadNames TARGET_INFO_SYSTEM_ENV TARGET_INFO_SESSION_START_TIME
    TARGET_INFO_GPU TARGET_INFO_CUDA_GPU TARGET_INFO_CUDA_DEVICE TARGET_INFO_CUDA_CONTEXT_INFO
    TARGET_INFO_CUDA_NULL_STREAM TARGET_INFO_CUDA_STREAM META_DATA_CAPTURE META_DATA_EXPORT EXPORT_META_DATA
    CUDA_GRAPH_EVENTS CUDA_GRAPH_NODE_EVENTS CUDA_GPU_MEMORY_POOL_EVENTS CUDA_CALLCHAINS
    CUPTI_ACTIVITY_KIND_CUDA_EVENT ENUM_CUDA_DEV_MEM_EVENT_OPER ENUM_CUDA_FUNC_CACHE_CONFIG
    ENUM_CUDA_KERNEL_LAUNCH_TYPE ENUM_CUDA_MEMCPY_OPER ENUM_CUDA_MEMPOOL_OPER ENUM_CUDA_MEMPOOL_TYPE
    ENUM_CUDA_MEM_KIND ENUM_CUDA_SHARED_MEM_LIMIT_CONFIG ENUM_CUPTI_OVERHEAD_TYPE ENUM_CUPTI_STREAM_TYPE
    ENUM_CUPTI_SYNC_TYPE ENUM_DIAGNOSTIC_SEVERITY_LEVEL ENUM_DIAGNOSTIC_SOURCE_TYPE ENUM_DIAGNOSTIC_TIMESTAMP_SOURCE
    ENUM_NSYS_EVENT_CLASS ENUM_NSYS_EVENT_TYPE
    """
)
#: Tables kept without rows: that the table exists says that calls were recorded twice, once with their stack.
_EMPTIED_TABLES = {"CUDA_CALLCHAINS"}

_EXPORT_SETTINGS = re.compile(
    rb"EXPORT_(PRODUCT|SCHEMA)_\w+|EXPORT_(PLATFORM|ARCH|TIME_UTC|LAZY|CONFIG_TIME_SHIFT)"
    rb"|EXPORT_PARAM_(LAZY|TIME_NORMALIZE|TIME_SHIFT|TABLES_TO_EXPORT|TIMES_TO_EXPORT)"
)
#: Names of the settings whose values are kept, by table.
_KEPT_SETTINGS = {
    "META_DATA_CAPTURE": re.compile(
        rb"CAPTURE_EVENT_TYPE|RATE_HZ|START_TRIGGER|STOP_TRIGGER|START_DELAY_MS|RUN_DURATION_MS"
        rb"|(PROCESS_\d+:)?(COLLECT|CUDA)_\w+(:\w+)?|(LINUX_PERF|OS_RUNTIME)_OPTIONS:\w+"
    ),
    "META_DATA_EXPORT": _EXPORT_SETTINGS,
    "EXPORT_META_DATA": _EXPORT_SETTINGS,
    "TARGET_INFO_SYSTEM_ENV": re.compile(
        rb"Cpu(Cores|Architecture|Description)|(NvDriver|CudaDriver|SoftwareRelease)Version|HardwarePlatform|OsDescription"
    ),
}

#: Thread names given by frameworks, which are kept; any other may carry the name of the program.
_KEPT_THREADS = re.compile(rb"python[\d.]*|pt_\w+|NCCL [\w ]+|cuda-EvtHandlr|CUPTI worker.*")

#: Columns that are emptied: identifiers of the hardware and its location, names of the machine, contents of
#: annotations.
_EMPTIED_COLUMNS = _words(
    """
    uuid luid busLocation pciBusId ctxswDevPath ctrlDevPath devStateName jsonText jsonTextId binaryData
    """
)

#: Columns that are kept in addition to those that are read, in any table: those that nsys is known to write. The CREATE
#: statement of each table is rewritten from these; the original one may contain anything.
_KEPT_COLUMNS = (
    {column for source in SOURCES for field in source.fields for column in (*field.columns, field.text_column)}
    | _EMPTIED_COLUMNS
    | _words(
        """
        argumentsId asyncEngines cacheConfig callchainId category chipName clockRate clusterSchedulingPolicy
        clusterX clusterY clusterZ color computeCapabilityMajor computeCapabilityMinor computeMajor computeMinor
        constantMemory constantMemorySize contextId copyCount coreClockRate cuDevice cudaId deprecatedSrcId
        deprecatedSyncType doubleValue dstContextId dstDeviceId duration endGlobalTid eventClass eventSyncId
        flag floatValue globalMemoryBandwidth globalMemorySize globalVid gpuId greenContextId gridId hwId id
        importedMemoryPoolAddress importedMemoryPoolProcessId int32Value int64Value isDiscrete isGreenContext
        l2CacheSize label launchType localMemoryPerThread localMemoryPoolAddress localMemoryPoolReleaseThreshold
        localMemoryPoolSize localMemoryPoolUtilizedSize localMemoryTotal localTime maxActiveClusters
        maxBlockDimX maxBlockDimY maxBlockDimZ maxBlocksPerMultiprocessor maxBlocksPerSm maxGridDimX maxGridDimY
        maxGridDimZ maxIPC maxPotentialClusterSize maxRegistersPerBlock maxRegistersPerMultiprocessor
        maxRegistersPerSm maxSharedMemoryPerBlock maxSharedMemoryPerMultiprocessor maxShmemPerBlock
        maxShmemPerBlockOptin maxShmemPerSm maxThreadsPerBlock maxWarpsPerMultiprocessor maxWarpsPerSm
        memoryBandwidth migrationCause module nameEnum nestingLevel nodeMask nullStreamId numMemcpyEngines
        numMultiprocessors numThreadsPerWarp numTpcs originalGraphId originalIP parentContextId pc pid priority
        processId pwGpuId qmdBulkReleaseDone qmdLastCtaDone qmdPreexitDone rangeId revision severity
        sharedMemoryExecuted sharedMemoryLimitConfig sharedMemoryRequestedPercentage smCount smMajor smMinor
        source srcContextId srcDeviceId stackDepth startTime stopTime symbol syncType systemClockNs
        tensorSizeMinusOneElements threadsPerWarp timestamp timestampType totalMemory tpcMask uint32Value
        uint64Value unresolved utcEpochNs utcTime value virtualAddress vmId workqueueConcurrencyLimit
        workqueueResourceId workqueueSharingScope
    """
    )
)
_TYPES = {b"INTEGER", b"INT", b"REAL", b"TEXT"}

#: Columns that refer to StringIds in schemas whose CREATE statements do not say so.
_REFERRING_COLUMNS = {"nameId", "textId", "shortName", "demangledName", "mangledName"}

#: Columns that name functions. Compilers wrote these texts: a user name that occurs in them is a coincidence.
_FUNCTION_COLUMNS = {"shortName", "demangledName", "mangledName"}
_FUNCTION_TABLES = {"CUPTI_ACTIVITY_KIND_RUNTIME", "OSRT_API", "PROFILER_OVERHEAD"}

#: Texts that people wrote, or that quote such texts.
_WRITTEN_TEXTS = (
    ("StringIds", "value"),
    ("NVTX_EVENTS", "text"),
    ("DIAGNOSTIC_EVENT", "text"),
    ("ANALYSIS_FILE", "filename"),
)

#: Where names that people gave become texts of the copy.
_NAMED = ("NVTX_EVENTS.text", "StringIds.value", "DIAGNOSTIC_EVENT.text")

#: The kind of a column that holds bytes; 0 is numbers and nulls only, 1 texts.
_BYTES = 2

#: What the two counts of omitted rows count, in words.
_WORDS = ("rows of whole tables", "rows of others")

#: Key of function names among the strings, in the counts.
_FUNCTIONS = "StringIds.function"
_DIAGNOSTICS = "DIAGNOSTIC_EVENT.text"


def copy_nsys(source: Input, partial: Path) -> Removed:
    """Write a scrubbed copy of an nsys SQLite export to the empty file `partial`.

    Left out: environment, host, user, command line, folders, program output, file accesses, other processes, names of
    threads, call stacks, serials of the hardware, contents of NVTX payloads, and unknown tables. Paths and identifying
    names in NVTX and diagnostic texts become `[path 1]` and `[removed]`. The time of the capture, the GPU, the
    versions, and the names of kernels, API calls and NVTX ranges are kept.
    """
    with SqliteFile(source.path, source.known_as) as file:
        if not looks_like_nsys(file.tables):
            raise file.unreadable("this is an SQLite database, but not an Nsight Systems export")
        file.refuse_damage()
        with _copied(file, partial) as copy:
            functions, others = copy.texts()
    description = "a value of the environment or the command line"
    search_copy(partial, copy.secrets, source.known_as, [others], [functions, others], description)
    return Removed.of(copy.cleaner, _WORDS, copy.left_tables, copy.left_rows)


def keep_needed(source: Input, kept: Path) -> None:
    """Write what is read of an export, with its texts unchanged, to the empty file `kept`: for the user's own cache.

    Environment, hosts, users, command lines and all that no reader needs are left out, as in a copy for others.
    """
    with SqliteFile(source.path, source.known_as) as file, _copied(file, kept, rewrites=False):
        pass


@contextmanager
def _copied(file: SqliteFile, target: Path, *, rewrites: bool = True) -> Iterator[_Copy]:
    """The finished copy of an export in the empty file `target`."""
    try:
        with closing(sqlite3.connect(target.as_uri(), uri=True, isolation_level=None)) as connection:
            copy = _Copy(connection, file, rewrites)
            copy.build()
            yield copy
    except sqlite3.Error as error:
        raise file.failed(error) from None


class _Copy:
    """The copy under construction: an empty database with the source attached to it.

    Attributes:
        secrets: what the source says about people and machines.
        left_tables: number of rows of each table left out.
        left_rows: number of rows left out of each table that is kept.
    """

    def __init__(self, connection: sqlite3.Connection, file: SqliteFile, rewrites: bool) -> None:
        """Attaches the source to the empty database, and chooses the tables and columns to keep."""
        self._rewrites = rewrites
        self._file = file
        self.secrets = _secrets_of(file)
        self.cleaner = Cleaner(self.secrets, _NAMED)
        self.left_tables: dict[str, int] = {}
        self.left_rows: dict[str, int] = {}
        self._connection = connection
        self._kept = [
            name
            for name, columns in file.tables.items()
            if name in _KEPT_TABLES and not _KEPT_COLUMNS.isdisjoint(columns)
        ]
        self._columns = {
            name: tuple(column for column in columns if name not in _KEPT_TABLES or column in _KEPT_COLUMNS)
            for name, columns in file.tables.items()
        }
        self._left_columns = {
            name: len(columns) - len(self._columns[name]) for name, columns in file.tables.items() if name in self._kept
        }
        self._definitions: dict[str, str] = {}
        connection.text_factory = bytes
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "secure_delete = ON", "temp_store = MEMORY"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("ATTACH ? AS source", (file.uri,))
        connection.create_function("clean", 2, self._clean)
        connection.create_function("release", 1, _release)
        connection.create_function("is_kept", 2, lambda table, name: bool(_KEPT_SETTINGS[table].fullmatch(name or b"")))
        connection.create_function("is_kept_thread", 1, lambda name: bool(_KEPT_THREADS.fullmatch(name or b"")))

    def build(self) -> None:
        """Create all tables first, so that they are at the front of the file, then fill them.

        The strings are filled last, when it is known which of them the copy refers to.
        """
        for name, sql in self._rows("SELECT name, sql FROM source.sqlite_master WHERE type = 'table'"):
            self._definitions[name.decode("utf-8", "replace")] = (sql or b"").decode("utf-8", "replace")
        self._connection.execute("BEGIN")
        for table in self._kept:
            self._connection.execute(self._create_statement(table))
        for table in self._columns:
            if table not in self._kept:
                self.left_tables[table] = self._count("source", table)
            elif table != "StringIds" and table not in _EMPTIED_TABLES:
                self._fill(table)
        self._fill_strings()
        self._connection.execute("COMMIT")
        omitted = {table: self._count("source", table) - self._count("main", table) for table in self._kept}
        self.left_rows = {table: rows for table, rows in omitted.items() if rows}
        if columns := sum(self._left_columns.values()):
            self.left_tables["columns"] = columns

    def _create_statement(self, table: str) -> str:
        """A new CREATE statement for a table: known columns and plain types, no defaults, checks or comments."""
        columns = []
        for _, name, kind, _, _, key in self._rows(f"PRAGMA source.table_info({quoted(table)})"):
            if (column := name.decode("utf-8", "replace")) in self._columns[table]:
                words = [quoted(column), kind.upper().decode() if kind.upper() in _TYPES else ""]
                if key and column == "id":
                    words.append("PRIMARY KEY")
                elif column in self._referring(table):
                    words.append("REFERENCES StringIds(id)")
                columns.append(" ".join(filter(None, words)))
        listed = ",\n".join(columns)
        return f"CREATE TABLE {quoted(table)} (\n{listed}\n)"

    def _referring(self, table: str) -> set[str]:
        """The columns of a table that refer to StringIds."""
        declared = set(re.findall(r"^\W*(\w+).*REFERENCES StringIds", self._definitions[table], re.MULTILINE))
        return set(self._columns[table]) & ((declared | _REFERRING_COLUMNS) - _EMPTIED_COLUMNS)

    def texts(self) -> tuple[bytes, bytes]:
        """All texts of the finished copy: names of functions and definitions of tables; and all others."""
        functions = self._rows("SELECT value FROM StringIds WHERE id IN functions")
        definitions = self._rows("SELECT sql FROM main.sqlite_master WHERE sql IS NOT NULL")
        others = self._rows("SELECT value FROM StringIds WHERE id NOT IN functions")
        for table in self._kept:
            for column in self._text_columns("main", table) if table != "StringIds" else ():
                name = f"CAST({quoted(column)} AS BLOB)"
                others += self._rows(f"SELECT DISTINCT {name} FROM main.{quoted(table)}")  # noqa: S608
        return _joined(functions + definitions), _joined(others)

    def _fill(self, table: str) -> None:
        texts = set(self._text_columns("source", table))
        values = ", ".join(self._value(table, column, column in texts) for column in self._columns[table])
        condition = "TRUE"
        if table in _KEPT_SETTINGS:
            condition = f"is_kept('{table}', CAST(name AS BLOB))" if "name" in self._columns[table] else "FALSE"
        elif table == "ThreadNames":
            condition = "nameId IN (SELECT id FROM source.StringIds WHERE is_kept_thread(CAST(value AS BLOB)))"
        self._connection.execute(
            f"INSERT INTO main.{quoted(table)} SELECT {values} FROM source.{quoted(table)} WHERE {condition}"  # noqa: S608
        )

    def _value(self, table: str, column: str, holds_text: bool) -> str:
        """The SQL expression for a column of the copy."""
        name = quoted(column)
        if column in _EMPTIED_COLUMNS:
            return f"CASE WHEN typeof({name}) IN ('text', 'blob') THEN '' END"
        if table == "TARGET_INFO_SESSION_START_TIME" and column == "localTime" and "utcTime" in self._columns[table]:
            return "utcTime"  # the difference reveals the time zone
        if not holds_text:
            return name
        cleaned = f"CAST(clean('{table}.{column}', CAST({name} AS BLOB)) AS TEXT)"
        if table == "TARGET_INFO_SYSTEM_ENV" and column == "value":
            release = f"CAST(release(CAST({name} AS BLOB)) AS TEXT)"
            cleaned = f"iif(name = 'SoftwareReleaseVersion', {release}, {cleaned})"
        return f"CASE typeof({name}) WHEN 'text' THEN {cleaned} ELSE {name} END"

    def _fill_strings(self) -> None:
        if "StringIds" not in self._kept:
            return
        for ids in ("used", "functions"):
            self._connection.execute(f"CREATE TEMP TABLE {ids} (id INTEGER PRIMARY KEY)")
        for table in self._kept:
            for column in self._referring(table):
                is_function = column in _FUNCTION_COLUMNS or table in _FUNCTION_TABLES
                for ids in ("used", "functions") if is_function else ("used",):
                    self._connection.execute(
                        f"INSERT OR IGNORE INTO temp.{ids} SELECT {quoted(column)} FROM main.{quoted(table)}"  # noqa: S608
                        f" WHERE typeof({quoted(column)}) = 'integer'"
                    )
        where = f"iif(id IN functions, '{_FUNCTIONS}', 'StringIds.value')"
        self._connection.execute(
            f"INSERT INTO main.StringIds (id, value) SELECT id, CAST(clean({where}, CAST(value AS BLOB)) AS TEXT)"  # noqa: S608
            " FROM source.StringIds WHERE id IN used AND value IS NOT NULL ORDER BY id"
        )

    def _clean(self, column: str, text: bytes | None) -> bytes | None:
        if text is None:
            return None
        if column == _DIAGNOSTICS and not (
            MAY_LACK_EVENTS.search(message := text.decode("utf-8", "replace")) or LOST_EVENTS.search(message)
        ):
            return b""  # names programs and folders, and no analysis needs it
        if not self._rewrites:
            return text
        return (self.cleaner.function if column == _FUNCTIONS else self.cleaner.written)(column, text)

    def _text_columns(self, schema: str, table: str) -> list[str]:
        """The columns with text or bytes in any row, whatever type they are declared with."""
        columns = self._columns[table]
        kinds = ", ".join(f"max(instr('tb', substr(typeof({quoted(column)}), 1, 1)))" for column in columns)
        (kinds_held,) = self._rows(f"SELECT {kinds} FROM {schema}.{quoted(table)}")  # noqa: S608
        if any(
            kind == _BYTES and column not in _EMPTIED_COLUMNS for column, kind in zip(columns, kinds_held, strict=True)
        ):
            raise self._file.unreadable(f"its table {table} holds bytes where a number or a text belongs")
        return [column for column, kind in zip(columns, kinds_held, strict=True) if kind]

    def _count(self, schema: str, table: str) -> int:
        ((count,),) = self._rows(f"SELECT count(*) FROM {schema}.{quoted(table)}")  # noqa: S608
        return int(count)

    def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql).fetchall()


def _secrets_of(file: SqliteFile) -> Secrets:
    """Secrets in an export's settings and environment, and the home folders in its texts."""
    secrets = Secrets()
    for table in _KEPT_SETTINGS:
        if {"name", "value"} <= set(file.tables.get(table, ())):
            for name, value in file.rows(f"SELECT name, value FROM {quoted(table)}"):  # noqa: S608
                if isinstance(name, bytes) and isinstance(value, bytes):
                    secrets.add_setting(name, value)
    for table, column in _WRITTEN_TEXTS:
        if column in file.tables.get(table, ()):
            name = quoted(column)
            homes = f"{name} LIKE '%/home/%' OR {name} LIKE '%/users/%' OR {name} LIKE '%\\users\\%'"
            for (text,) in file.rows(f"SELECT DISTINCT {name} FROM {quoted(table)} WHERE {homes}"):  # noqa: S608
                secrets.add_home_owners(text if isinstance(text, bytes) else b"")
    return secrets


def _joined(rows: list[tuple[Any, ...]]) -> bytes:
    return b"\0".join(text or b"" for (text,) in rows)


def _release(text: bytes | None) -> bytes | None:
    """A kernel's release without the name of its build. "microsoft" is kept: it says that this is WSL."""
    if text is None:
        return None
    version = re.match(rb"\d+\.\d+", text)
    return (version.group() if version else b"") + (b"-microsoft" if b"microsoft" in text.lower() else b"")
