"""Formats quantities and names for display. Analyses keep exact numbers; only this module rounds and adds units."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, TypeAlias

from warplens.patterns import lazy_pattern

if TYPE_CHECKING:  # the runner of sweeps writes spans on machines without Polars
    import polars as pl

    from warplens.profile import Capture
    from warplens.profile.schema import Kind


Scalar: TypeAlias = "str | int | float | bool | None"

#: Shown for a quantity that was not recorded or is not defined.
MISSING = "–"


#: Decimal prefixes, so that bytes divided by time give the bandwidth shown beside them.
_TIME_UNITS = ((1, "ns"), (1_000, "µs"), (1_000_000, "ms"), (1_000_000_000, "s"))
_BYTE_UNITS = ((1, "B"), (10**3, "kB"), (10**6, "MB"), (10**9, "GB"), (10**12, "TB"), (10**15, "PB"))
_FLOP_UNITS = ((1, "FLOP"), (10**6, "MFLOP"), (10**9, "GFLOP"), (10**12, "TFLOP"), (10**15, "PFLOP"))
_PLAIN_UNITS = ((1, ""), (10**3, "k"), (10**6, "M"), (10**9, "G"))

#: Below this, one decimal of a percentage would read "0.0 %", as if there were nothing.
_SMALLEST_SHOWN_SHARE = 0.0005


def is_numeric(kind: Kind) -> bool:
    """Whether values of this kind are numbers (right-aligned, sorted by size)."""
    return kind in _FORMATTERS


def duration(nanoseconds: float) -> str:
    """A time with three significant digits and a fitting unit: `1.23 ms`."""
    return _scaled(nanoseconds, _TIME_UNITS)


def span(seconds: float) -> str:
    """A time on a human scale, coarsely rounded: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def change(nanoseconds: float) -> str:
    """A difference of times with its sign: `+391 µs`, `−89.9 µs`."""
    return f"+{duration(nanoseconds)}" if nanoseconds > 0 else duration(nanoseconds)


def data_size(size_bytes: float) -> str:
    """An amount of data with three significant digits, in decimal units: `1.50 MB`."""
    return _scaled(size_bytes, _BYTE_UNITS)


def bandwidth(bytes_per_s: float) -> str:
    """Bytes per second with three significant digits: `24.8 GB/s`."""
    return f"{_scaled(bytes_per_s, _BYTE_UNITS)}/s"


def flop_rate(per_s: float) -> str:
    """Floating-point operations per second with three significant digits: `62.9 TFLOP/s`."""
    return f"{_scaled(per_s, _FLOP_UNITS)}/s"


def flop_count(operations: float) -> str:
    """Floating-point operations with three significant digits: `1.20 TFLOP`."""
    return _scaled(operations, _FLOP_UNITS)


def rate(per_s: float) -> str:
    """Events per second with three significant digits: `12.3 k/s`."""
    return f"{_scaled(per_s, _PLAIN_UNITS).rstrip()}/s"


def share(part: float) -> str:
    """A share of 0–1 as a percentage with one decimal; nonzero shares that would round to 0.0 are `<0.1 %`."""
    if 0 < abs(part) < _SMALLEST_SHOWN_SHARE:
        return "<0.1 %" if part > 0 else f"{_signed('<0.1', negative=True)} %"
    return f"{_signed(f'{abs(part) * 100:.1f}', negative=part < 0)} %"


def count(events: float) -> str:
    """A whole number with thousands separated: `7,267`; a mean of counts keeps up to one decimal."""
    whole = int(events) if float(events).is_integer() else None  # exact beyond 2^53, for timestamps in ns
    text = f"{abs(events):,.1f}" if whole is None else f"{abs(whole):,}"
    return _signed(text, negative=events < 0)


def plural(events: float, one: str, several: str | None = None) -> str:
    """A count with its noun in the singular or plural: `1 row`, `12 rows`."""
    return f"{count(events)} {one if events == 1 else several or f'{one}s'}"


def listed(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


#: The begin of a file, function or kernel name, which is not capitalised.
_NAME: Final = re.compile(r"\w+[._/A-Z]\w")


def capitalised(text: str) -> str:
    """The text with its first letter in upper case, unless it begins with a name."""
    return text if _NAME.match(text) else text[:1].upper() + text[1:]


def sentence(text: str) -> str:
    """The text capitalised, with a full stop unless it ends with `.`, `!` or `?`."""
    capital = capitalised(text)
    return capital if capital.endswith((".", "!", "?")) else f"{capital}."


def number(quantity: float) -> str:
    """A plain number with three significant digits, whole numbers in full."""
    if float(quantity).is_integer():
        return count(quantity)
    if not 0.001 <= abs(quantity) < 1_000_000:
        return _signed(f"{abs(quantity):.2e}", negative=quantity < 0)
    return _signed(_three_digits(abs(quantity)), negative=quantity < 0)


def value(item: Scalar, kind: Kind) -> str:
    """One value formatted by kind; names are not shortened, null, NaN and infinity become `MISSING`."""
    if item is None or (isinstance(item, float) and not math.isfinite(item)):
        return MISSING
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, str) or kind not in _FORMATTERS:
        return printable(str(item))
    return _FORMATTERS[kind](item)


_FORMATTERS = {
    "duration_ns": duration,
    "change_ns": change,
    "bytes": data_size,
    "share": share,
    "count": count,
    "number": number,
    "rate": rate,
    "bandwidth": bandwidth,
    "flops": flop_rate,
    "flop_count": flop_count,
}


def recorded_with(capture: Capture) -> str:
    """The profiler of a file with its version, where that is known: `nsys 2025.3.1`."""
    return f"{capture.tool} {capture.tool_version or ''}".strip()


def gpu_names(*captures: Capture) -> str:
    """The names of the GPUs in files, each once; empty where no file names one."""
    return ", ".join(dict.fromkeys(device.name for capture in captures for device in capture.devices))


def _scaled(quantity: float, units: tuple[tuple[int, str], ...]) -> str:
    size = abs(quantity)
    # A value that rounds up to the next unit (999,950 ns) belongs there: "1.00 ms", not "1000 µs".
    factor, unit = units[0]
    for next_factor, next_unit in units[1:]:
        if size < next_factor * 0.9995:
            break
        factor, unit = next_factor, next_unit
    scaled = size / factor
    is_whole = factor == 1 and float(size).is_integer()
    text = f"{size:,.0f}" if is_whole else _three_digits(scaled)
    return _signed(f"{text} {unit}", negative=quantity < 0)


def _three_digits(size: float) -> str:
    if size >= 99.95:
        return f"{size:,.0f}"
    if size >= 9.995:
        return f"{size:.1f}"
    return f"{size:.2f}" if size >= 0.0995 or size == 0 else f"{size:.3g}"


def _signed(text: str, *, negative: bool) -> str:
    return f"−{text}" if negative else text


#: Characters: enough for the tile and layout part of a GEMM's name, few enough for a table cell.
DEFAULT_NAME_WIDTH = 64

_SPACES = lazy_pattern(r"[\t\n\v\f\r\u0085\u2028\u2029]+")
#: Control characters, marks of direction, unpaired surrogates, and the noncharacters that XML refuses.
_UNPRINTABLE = lazy_pattern(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")

_SIGNATURE = lazy_pattern(r"[<(]|::|^_Z")
_CAST = lazy_pattern(r"\((?:unsigned |signed )?(?:int|long long|long|short|char|bool)\)(?=-?\d)")
_QUALIFIED_NAME = lazy_pattern(r"[A-Za-z_]\w*(?:::~?[A-Za-z_]\w*)*")
#: The part after the tile of an xmma GEMM's name (stages, warps, alignment); only "split k" is kept of it.
_XMMA_TAIL = lazy_pattern(r"(?<=\d)_stage\d+_\w*?_execute(?P<split>(?:_split_?k)?)_kernel__\w+$")

#: Kernels that loop over a functor: without the functor, the name is not informative.
_GENERIC_KERNEL = lazy_pattern(
    r"(?:.*elementwise_kernel.*|distribution_.*|reduce_kernel|multi_tensor_apply_kernel|for_each_kernel|kernel_agent)$"
)
#: Words of a full name that can distinguish kernels of the same short name; at most `_MOST_WORDS` are added.
_NAME_WORD = lazy_pattern(r"[A-Za-z][A-Za-z0-9]*|\d+")
_NO_DIFFERENCE = frozenset(
    {"at", "c10", "native", "std", "array", "char", "ul", "anonymous", "namespace", "unnamed", "int"}
)
_MOST_WORDS = 3

#: Kernels described only by their template argument; the wrapper's own name is dropped.
_WRAPPER_KERNEL = frozenset({"Kernel", "Kernel2", "device_kernel", "kernel", "kentry"})

#: Template arguments that wrap the functor or describe types, but do not say what the kernel computes.
_CARRIER = lazy_pattern(
    r"(?:gpu_kernel_impl\w*|gpu_index_kernel|gpu_kernel\w*|ReduceOp|func_wrapper_t|[AB]?UnaryFunctor|[AB]UnaryFunctor|"
    r"BinaryFunctor|(?:Unary|Binary|Ternary|Pointwise)Op\w*Functor|TensorList\w*|GemmUniversal\w*|enable_sm\w+|"
    r"enable_arch\w*|LaunchHelper|DefaultMmaKernel|GroupProblemShape)$"
)
_TYPE_WORD = lazy_pattern(
    r"(?:void|int|float|double|bool|char|short|long|unsigned|signed|const|auto|size_t|u?int\d+_t|T\d+|c?array|tuple|"
    r"operator|lambda|instance|Half|half|BFloat16|bfloat16_t|half_t|complex|Scalar|Tensor|TensorIterator(?:Base)?|"
    r"ArrayRef|OpaqueType|(?:Trivial)?OffsetCalculator|(?:Load|Store)With(?:out)?Cast|true|false|type|value|"
    r"CUDAGeneratorImpl|__nv_bfloat16|__half)$"
)


def printable(text: str) -> str:
    """A text from a profile, safe to print on one line: line breaks become spaces, other control characters `U+FFFD`.

    Control characters could move a terminal's cursor, and direction overrides could make a name read as another. XML
    allows what is left.
    """
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", _SPACES.sub(" ", text))


def shell_word(path: str | PurePath) -> str:
    r"""A path as one word of a command line: no option, on one line, and in characters that any output can hold.

    >>> [shell_word(path) for path in ("a b.json", "-a.json", "a\nb.json")]
    ["'a b.json'", './-a.json', "$'a\\x0ab.json'"]
    """
    text = f"./{path}" if str(path).startswith("-") else str(path)
    if text.isprintable():
        return shlex.quote(text)
    plain = (chr(byte) if 32 <= byte < 127 and byte not in b"'\\" else f"\\x{byte:02x}" for byte in os.fsencode(text))
    return f"$'{''.join(plain)}'"


def shorten(name: str, width: int = DEFAULT_NAME_WIDTH) -> str:
    """A text cut to `width` characters: the ellipsis replaces its middle, a quarter of the width is kept as tail."""
    if len(name) <= width:
        return name
    tail = width // 4
    return f"{name[: width - tail - 1]}…{name[-tail:]}"


def shorten_kernel(full_name: str, width: int = DEFAULT_NAME_WIDTH) -> str:
    """The short name of a kernel, from its demangled name.

    Return type, namespaces, parameters and template arguments are dropped. A kernel that loops over a functor keeps
    the functor (`vectorized_elementwise_kernel<FillFunctor>`), one that only wraps a type becomes that type's name, and
    other templates get `<…>` (`flash_fwd_kernel<…>`).
    """
    full_name = printable(full_name)
    from warplens.profile.spelling import split_name  # needs Polars, which a measuring machine may lack

    if not _SIGNATURE.search(full_name):  # text such as `16 more kernels`, or a plain C name
        return shorten(_XMMA_TAIL.sub(r"\g<split>", full_name.strip()), width)
    parts = split_name(full_name)
    base = _XMMA_TAIL.sub(r"\g<split>", parts.short or full_name)
    arguments = _CAST.sub("", parts.template)
    if full_name.startswith("_Z"):  # in a mangled name the arguments include namespaces
        arguments = ", ".join(word for word in arguments.split(", ") if not word.islower())
    if not arguments:
        return shorten(base, width)
    if base in _WRAPPER_KERNEL:
        return shorten(_informative_argument(arguments) or f"{base}<…>", width)
    if _GENERIC_KERNEL.match(base):
        functor = _informative_argument(arguments)
        return shorten(f"{base}<{functor}>" if functor else f"{base}<…>", width)
    return shorten(f"{base}<…>", width)


def kernel_labels(full_names: Iterable[str]) -> dict[str, str]:
    """Distinct short names of kernels, by full name.

    Kernels of the same short name (`shorten_kernel`) get words that only their own full name contains: a type, a vector
    width, a template argument. If those do not distinguish them, they are numbered.

    >>> kernels = [f"void sum_kernel<{argument}>(int)" for argument in ("float, 4", "double, 4", "float, 8")]
    >>> list(kernel_labels(kernels).values())
    ['sum_kernel<float, 4>', 'sum_kernel<double, 4>', 'sum_kernel<float, 8>']
    """
    alike: dict[str, list[str]] = {}
    for name in dict.fromkeys(full_names):
        alike.setdefault(shorten_kernel(name), []).append(name)
    labels: dict[str, str] = {}
    for short, names in alike.items():
        labels.update(zip(names, _distinct_labels(short, names) if len(names) > 1 else [short], strict=True))
    return labels


def _distinct_labels(short: str, names: list[str]) -> list[str]:
    """One label for each of these full names, which all have the same short name."""
    words_of = [_NAME_WORD.findall(name) for name in names]
    common = Counter(words_of[0])
    for words in words_of[1:]:
        common &= Counter(words)
    distinctive = []
    for words in words_of:
        extra = Counter(words) - common
        differing = (word for word in dict.fromkeys(words) if word in extra and word not in _NO_DIFFERENCE)
        distinctive.append(sorted(differing, key=str.isdigit))  # types before sizes
    for most in range(1, _MOST_WORDS + 1):
        labels = [_with_words(short, words[:most]) for words in distinctive]
        if len(set(labels)) == len(labels):
            return labels
    return [_with_words(short, [*words[:1], f"#{number}"]) for number, words in enumerate(distinctive, start=1)]


def _with_words(short: str, words: list[str]) -> str:
    """`sum_kernel<float>` for `sum_kernel<…>`, `sum_kernel<Add, float>` for `sum_kernel<Add>`."""
    if not words:
        return short
    text = ", ".join(words)
    base = short.removesuffix("<…>")
    if base == short and short.endswith(">"):
        base, text = short[:-1], f", {text}>"
    else:
        text = f"<{text}>"
    return shorten(base, max(DEFAULT_NAME_WIDTH - len(text), DEFAULT_NAME_WIDTH // 2)) + text


def name_and_full(
    item: Scalar, full: str | None, kind: Kind, labels: Mapping[str, str] | None = None
) -> tuple[str, str | None]:
    """A value as it is displayed, and its full text if that is longer, else None.

    Args:
        full: the full text, if it is in a column of its own.
        kind: a `kernel` is shortened by `shorten_kernel`, a `name` by cutting; other kinds are formatted.
        labels: distinct short names of kernels, by full name (`kernel_labels`).
    """
    if kind == "kernel" and isinstance(full or item, str):
        full_text = printable(full or str(item))
        text = (labels or {}).get(full or str(item)) or shorten_kernel(full_text)
    elif kind == "name" and isinstance(item, str):
        full_text = printable(full or item)
        text = shorten(printable(item))
    else:
        return value(item, kind), full
    return text, full_text if full_text != text else None


def _informative_argument(arguments: str) -> str | None:
    """The first template argument that says what is computed, or else the first wrapper; None for types alone."""
    carrier = None
    for match in _QUALIFIED_NAME.finditer(arguments):
        name = match.group().rsplit("::", 1)[-1]
        if _TYPE_WORD.match(name):
            continue
        if not _CARRIER.match(name):
            return name
        carrier = carrier or name
    return carrier


#: Display names of kernel categories that differ from the key: in full, and for narrow columns.
_CATEGORIES: Final = {
    "gemm": ("matrix products (GEMM)", "GEMM"),
    "normalization": ("normalisation", "normalisation"),
    "gather-scatter": ("gather, scatter, embedding", "gather, scatter"),
    "sort-topk": ("sort and top-k", "sort, top-k"),
    "copy-cast": ("copies and casts by kernels", "copy, cast"),
    "recurrence": ("recurrences and state-space scans", "recurrence"),
    "random": ("random numbers", "random"),
    "triton": ("Triton-generated kernels", "Triton"),
    "other": ("other kernels", "other"),
}

#: Display names of causes of idle time that differ from the key.
_CAUSES: Final = {
    "launch": "waiting for a launch",
    "graph-launch": "waiting for a graph launch",
    "refill": "refill after a synchronization",
    "allocation": "memory allocation",
    "blocking-copy": "blocking copy",
    "host": "host busy outside CUDA",
    "dependency": "waiting for other GPU work",
    "submission": "held back by driver or other program",
    "start-latency": "start latency",
    "profiler": "profiler overhead",
    "unknown": "cause not recorded",
    "uneven-gpus": "waiting for the busiest GPU",
    "gpus-in-turn": "waiting for the turn of another GPU",
    "data-parallel-threads": "threads of one process for several GPUs",
}


def category_title(category: str, *, short: bool = False) -> str:
    """The display name of a kernel category; `short` for a table column."""
    full, narrow = _CATEGORIES.get(category, (category, category))
    return narrow if short else full


def cause_title(cause: str) -> str:
    """The display name of a cause of idle time."""
    return _CAUSES.get(cause, cause)


def phase_title(phase: str) -> str:
    """The display name of a phase of a training step; `none` is the work outside of all phases."""
    return "outside of all phases" if phase == "none" else phase


def with_part_titles(parts: pl.DataFrame) -> pl.DataFrame:
    """The rows with `title` added: the display name of their `group` and `part`."""
    import polars as pl

    keys = parts.select(pl.col("group", "part").cast(pl.String)).iter_rows()
    return parts.with_columns(pl.Series("title", [part_title(*key) for key in keys], dtype=pl.String))


def part_title(group: str, part: str) -> str:
    """The display name of a part of a time budget."""
    if group == "idle":
        return cause_title(part)
    if group == "copy":
        return "memory fill" if part == "memset" else f"copy {part.replace('-', ' ')}"
    return category_title(part)
