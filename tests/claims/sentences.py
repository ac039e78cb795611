"""Numbers with units in sentences and cells of tables, and whether the JSON of the same answer has them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product
from statistics import median
from typing import Any, Final

from tests.claims.pages import Page
from tests.claims.reading import Reading
from warplens.diagnosis.findings import times
from warplens.report import text as fmt

#: Keys of JSON whose texts are the same in every answer, or name things: their numbers claim nothing about a profile.
_FIXED: Final = frozenset(
    ("how_to", "how", "action", "refute", "title", "assumptions", "source", "sources", "remedy", "name", "full_name",
     "input_shapes", "grid", "block", "owner", "owners", "where", "tool_version", "schema_version", "chip",
     "unavailable", "peak_sources", "kernel", "line", "lacks", "baseline_full_name", "variant_full_name", "path",
     "module", "doubts")
)  # fmt: skip


def leaves(value: Any, path: str = "data") -> Iterator[tuple[str, str, Any]]:
    """Path, nearest key and value of everything that is no container."""
    if isinstance(value, dict):
        if value.keys() == {"name", "value"}:  # a number whose name tells its unit
            value = {value["name"]: value["value"]}
        for key, inner in value.items():
            yield from ((place, own or key, leaf) for place, own, leaf in leaves(inner, f"{path}.{key}"))
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, path)
    else:
        yield path, path.rpartition(".")[2], value


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


#: A number with its unit, as `warplens.report.text` writes it; not a part of a word or a version.
_TOKEN: Final = re.compile(
    r"(?<![\w.,:/=\[(×-])([−+-]?<?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)"
    r"( %|×| (?:ns|µs|ms|s|B|kB|MB|GB|TB|PB|[kMG]?/s|[kMGTP]?B/s|[MGTP]?FLOP(?:/s)?))(?![\w/])"
)


def tokens(text: str) -> list[tuple[str, str]]:
    """The numbers with units of a text, as (number, unit)."""
    return [(number.lstrip("+"), unit.strip()) for number, unit in _TOKEN.findall(text)]


def _written(key: str, value: float) -> Iterator[str]:
    """How a number of the JSON may read, by its key."""
    if key.endswith(("_ns", "_ns_per_step", "_ns_per_wait", "_ns_per_launch")) or "ns" in key.split("_"):
        yield fmt.duration(value)
        yield fmt.duration(round(value))
    if key == "share" or "share" in key or "error" in key or key in ("mfu", "hfu"):
        yield fmt.share(value)
        yield fmt.share(1 - value)
    if "flops_per_s" in key or key == "per_second":
        yield fmt.flop_rate(value)
        yield fmt.rate(value)
    elif "per_s" in key:
        yield fmt.bandwidth(value)
        yield fmt.rate(value)
    if "flops" in key:
        yield fmt.flop_count(value)
    if "bytes" in key or key == "size":
        yield fmt.data_size(value)
        yield fmt.bandwidth(value)
    if value > 100:
        yield ">100×"
        yield "100×"
    if "factor" in key or "gain" in key or key in ("speedup", "expected", "expected_interval", "bound", "ratio"):
        yield times(value)
        yield f"{fmt.number(value)}×"


def _pool(data: Mapping[str, Any], extra: Iterable[str]) -> set[str]:
    known = set(extra)
    for path, key, value in leaves(data):
        if not is_number(value):
            continue
        nearest = key if not key.isdigit() else path.rpartition(".")[0].rpartition(".")[2]
        parent = path.rpartition(".")[0].rpartition(".")[2]
        for name in {nearest, parent} if parent.endswith(("_ns", "after")) else {nearest}:
            known.update(_written("after_ns" if name == "after" else name, value))
    return known


def _json_texts(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for path, key, value in leaves(data):
        if isinstance(value, str):
            yield ("" if key in _FIXED else path), value


def numbers_of(page: Page) -> set[str]:
    """The numbers of an answer's JSON, and what follows from them, as people read them."""
    known = _pool(page.data, _derived(page))
    for warning in page.warnings:
        text = warning if isinstance(warning, str) else " ".join(str(part) for part in warning.values())
        known.update(_joined(each) for each in tokens(text))
    return known


def check_texts(reading: Reading, page: Page, known: set[str]) -> None:
    """Look for each number with a unit among those that the JSON of the profile's answers has."""
    quoted: set[str] = set()
    for path, text in _json_texts(page.data):
        found = tokens(_plain(text))
        quoted.update(_joined(each) for each in found)
        if path and found:
            reading.sentences += 1
            _check_sentence(reading, f"{page.command} {path}", text, found, known)
    for form, text in page.texts.items():
        for line in text.splitlines():
            found = tokens(_plain(line))
            if not found:
                reading.sentences += bool(re.search(r"\d", line))
                continue
            reading.sentences += 1
            _check_sentence(reading, f"{page.command} {form}", line, found, known | quoted)


#: Numbers of fixed texts, which are the same in every answer, and the median of all kernels, which no JSON holds.
_CONSTANT: Final = re.compile(
    r"below 100 ns are in the first bin|\| its 90 % interval(?: \||$)|less than 0\.1 %|"
    r"(?<=, )kernel [\d.,]+ [nµm]?s(?=\.\])|"
    r"the median kernel takes [\d.,]+ [nµm]?s|By the gain: critical from 1\.5×, warning from 1\.1×"
)


def _plain(line: str) -> str:
    line = _CONSTANT.sub("", line)
    return line.replace("\\", "").replace("**", "").replace("&lt;", "<").replace("&gt;", ">")


def _joined(token: tuple[str, str]) -> str:
    number, unit = token
    return f"{number}{unit}" if unit == "×" else f"{number} {unit}"


def _check_sentence(reading: Reading, where: str, text: str, found: Sequence[tuple[str, str]], known: set[str]) -> None:
    for token in found:
        number, unit = token
        if unit == "%" and not where.startswith("compare"):
            value = float(number.strip("<−-").replace(",", ""))
            reading.expect(value <= 100, "percentages are at most 100 %", f"{where}: {text.strip()[:200]}", number, 100)
        written = _joined(token)
        reading.expect(
            written in known,
            "a number in words is one of the JSON",
            f"{where}: {text.strip()[:240]}",
            written,
            "not found",
        )


def _derived(page: Page) -> Iterator[str]:
    """Numbers that follow from two of the JSON: shares of idle, of busy time, times of a step."""
    data = page.data
    # The window at the practical roofs of its kernels is shorter by their headroom (Amdahl).
    yield from (
        times(1 / (1 - value)) for _, key, value in leaves(data) if key == "to_roof_share" and 0 < (value or 0) < 1
    )
    for parts in _lists_called("left_out", data):
        spent: dict[str, int] = {}
        for part in parts:
            spent[part["what"]] = spent.get(part["what"], 0) + part["duration_ns"]
        yield from map(fmt.duration, spent.values())
    if page.command == "headroom":
        for device in data["devices"]:
            yield from _of_headroom(device)
    if page.command == "report":
        yield from _of_report(data)
        if data["diagnosis"]:
            yield from _of_diagnosis(data["diagnosis"])
    if page.command == "diagnose":
        yield from _of_diagnosis(data)
    if page.command == "compare":
        yield from _of_comparison(data)


def _lists_called(name: str, data: Any) -> Iterator[list[Any]]:
    """The lists with this name, anywhere in a JSON."""
    for key, value in data.items() if isinstance(data, Mapping) else enumerate(data) if isinstance(data, list) else ():
        if key == name and isinstance(value, list):
            yield value
        else:
            yield from _lists_called(name, value)


def _of_diagnosis(data: Mapping[str, Any]) -> Iterator[str]:
    wall = data["coverage"]["wall_ns"]
    if not wall:
        return
    yield fmt.share(data["coverage"]["claimed_ns"] / wall)
    pace = data.get("pace")
    if pace:
        whole = sum(pace["thread_ns"].values())
        yield from (fmt.share(part / whole) for part in pace["thread_ns"].values())
    for phase in data["per_phase"]:
        yield fmt.share(phase["busy_ns"] / phase["wall_ns"] if phase["wall_ns"] else 0.0)
    if data["per_phase"]:
        of_verdict = [share for phase in data["per_phase"] if (share := phase["of_verdict_share"]) is not None]
        yield fmt.share(max(1 - sum(of_verdict), 0.0))
        outside, busy = (
            data["coverage"][key] - sum(phase[key] for phase in data["per_phase"]) for key in ("wall_ns", "busy_ns")
        )
        if outside > 0:
            yield from (fmt.duration(outside), fmt.share(outside / wall), fmt.share(busy / outside))
    for finding in data["findings"]:
        evidence = finding["evidence"]
        if finding["expected"]:
            yield fmt.share(1 - 1 / finding["expected"])  # what the gain saves of the time
        times = [value for name, value in evidence.items() if name.endswith("_ns") and "median" not in name]
        yield from (fmt.share(sum(some) / wall) for count in (1, 2) for some in combinations(times, count))
        for wide in ("off_tensor_cores_share", "float64_share"):
            if wide in evidence:
                yield fmt.share(evidence[wide] * (1 - 1 / evidence["peak_ratio_factor"]))
    for item in data["predictions"]:
        yield from (f"{item[key] / 1e6:.2f} ms" for key in ("measured_ns", "predicted_ns"))


def _of_headroom(device: Mapping[str, Any]) -> Iterator[str]:
    steps = max(1, device["steps"])
    yield from (fmt.duration(round(left / steps)) for left in device["after"].values())
    yield "100.0 %"
    for _, key, value in leaves(device):
        write = {"_bytes": fmt.data_size, "_ns": fmt.duration}.get(key[key.rfind("_") :])
        if write is not None and is_number(value):
            yield write(round(value / steps))


def _of_report(data: Mapping[str, Any]) -> Iterator[str]:
    for device in (data.get("headroom") or {}).get("devices", ()):
        yield from _of_headroom(device)
    steps = max(1, len(data["window"]["steps"]))
    idle = busy = 0
    parts: Counter[tuple[str, str]] = Counter()
    for budget in data["budget"]["devices"]:
        idle, busy = idle + budget["idle_ns"], busy + budget["busy_ns"]
        for row in budget["rows"]:
            parts[row["group"], row["part"]] += row["time_ns"]
            parts[row["group"], "all"] += row["time_ns"]
            # Halves are rounded by what a division leaves of them.
            yield from (fmt.duration(row["time_ns"] / steps * (1 + least)) for least in (-1e-12, 0, 1e-12))
        yield fmt.share(budget["busy_ns"] / budget["duration_ns"] if budget["duration_ns"] else 0.0)
    wholes = {"idle": idle}
    for (group, _), spent in parts.items():
        if whole := wholes.get(group, busy):
            yield fmt.share(spent / whole)
    if idle + busy:
        yield fmt.share(busy / (idle + busy))
        yield fmt.share(idle / (idle + busy))
    yield from _products(data, busy)
    walls = sorted(row["wall_ns"] for row in data["steps"]["rows"] if row["in_window"])
    if walls:
        yield fmt.duration(median(walls))
    yield f"{data['timeline']['origin_ns']:,} ns".replace("-", "\N{MINUS SIGN}")
    yield from _of_tables(data, steps)


#: Kinds of work that a headline calls matrix products.
_PRODUCTS: Final = ("gemm", "attention", "convolution")


def _products(report: Mapping[str, Any], busy: int) -> Iterator[str]:
    """Products of the busy time: "busy for 98.9 % of the time, 60.9 % of it with matrix products"."""
    spent = sum(
        row["time_ns"] for budget in report["budget"]["devices"] for row in budget["rows"] if row["part"] in _PRODUCTS
    )
    if busy:
        yield fmt.share(spent / busy)


def _of_tables(data: Mapping[str, Any], steps: int) -> Iterator[str]:
    phases = {row["phase"]: row["gpu_ns"] for row in data["phases"]["rows"]}
    if phases.get("forward"):
        yield f"{100 * phases.get('backward', 0) / phases['forward']:.0f} %"
    for phase in data["phases"]["rows"]:
        yield fmt.duration(phase["gpu_ns"] / steps)
        for part, whole in (("matmul_ns", "kernel_ns"), ("inferred_ns", "gpu_ns")):
            yield fmt.share(phase[part] / phase[whole] if phase[whole] else 0.0)
    shares = [row["share"] for row in data["kernels"]["rows"]]
    yield from (fmt.share(sum(shares[:most])) for most in range(1, 21))
    kernels = sum(row["total_ns"] for row in data["kernels"]["rows"])
    yield fmt.duration(kernels)
    work_ns = kernels + sum(row["total_ns"] for row in data["copies"]["rows"])
    unknown = kernels - (data["categories"]["coverage"] or {}).get("categorised_ns", kernels)
    yield fmt.share(unknown / work_ns if work_ns else 0.0)
    for totals in (data["categories"]["coverage"], data["precisions"]["tensor_cores"], data["ranges"]["coverage"]):
        yield from _ratios([value for value in (totals or {}).values() if is_number(value)])
    if ranges := data["ranges"]["coverage"]:
        yield fmt.share((ranges["same_thread_ns"] + ranges["inferred_ns"]) / max(ranges["total_ns"], 1))
    yield from _of_operators(data["operators"])
    yield from _of_work(data["work"], data["window"]["duration_ns"], steps)
    for use in (data["allocator"] or {}).get("rows", ()):
        yield fmt.duration(use["peak_ns"] - data["window"]["start_ns"])
        yield from (fmt.data_size(abs(one - other)) for one, other in combinations(_sizes(use), 2))
    for found in data["copies"]["overlap"]:
        yield from (fmt.duration(value) for key, value in found.items() if key.endswith("_ns"))


def _of_operators(operators: Mapping[str, Any] | None) -> Iterator[str]:
    if operators is None:
        return
    overhead, coverage = operators["overhead"], operators["coverage"]
    yield fmt.duration(overhead["host_ns"] - overhead["api_ns"])
    yield fmt.duration(overhead["window_ns"] - overhead["busy_ns"])
    yield from _ratios([value for _, _, value in leaves({**overhead, **coverage}) if is_number(value)])
    yield from _ratios([coverage["linked_ns"], coverage["backward_ns"] - coverage["accumulation_ns"]])
    own: Counter[str] = Counter()
    for row in operators["modules"]["rows"]:
        own[row["name"]] += (row["gpu_self_ns"] or 0) + (row["backward_self_ns"] or 0)
    yield from (fmt.share(spent / coverage["total_ns"]) for spent in own.values() if coverage["total_ns"])


def _of_work(work: Mapping[str, Any] | None, window_ns: int, steps: int) -> Iterator[str]:
    if work is None:
        return
    modelled = sum(row["gpu_ns"] for row in work["rows"])
    for flops in (work["flops"], work["matmul_flops"]):
        yield fmt.flop_count(flops / steps)
        yield from (fmt.flop_rate(flops / time * 1e9) for time in (modelled, window_ns) if time)


def _sizes(use: Mapping[str, Any]) -> list[int]:
    return [value for key, value in use.items() if key.endswith("_bytes") and is_number(value)]


def _ratios(values: Sequence[float]) -> Iterator[str]:
    """Each over each, and what is left of it."""
    for part, whole in product(values, values):
        if whole:
            yield fmt.share(part / whole)
            yield fmt.share(1 - part / whole)


def _of_comparison(data: Mapping[str, Any]) -> Iterator[str]:
    if data.get("kind") != "traces":
        return
    wall, why = data["wall"], data["explanation"]
    ratios = [each["ratio"] for each in (data["verdict"], data["gpu_work"]) if each is not None]
    ends = [ratio[end] for ratio in ratios for end in ("estimate", "low", "high")]
    for value in (*ends, wall["variant_ns"] / wall["baseline_ns"]):
        yield from _change(value)
    yield "95 %"
    yield f"{100 * data['verdict']['noise']['drift']:.0f} %"
    yield from (f"{100 * abs(value):.0f} %" for _, key, value in leaves(data["verdict"]) if is_number(value))
    rows = sorted(data["rows"], key=lambda row: -abs(row["variant_ns"] - row["baseline_ns"]))
    for first in range(len(rows) + 1):
        rest = [sum(row[f"{side}_ns"] for row in rows[first:]) for side in ("baseline", "variant")]
        shares = [row["share"] for row in rows[first:] if row["share"] is not None]
        yield from (fmt.duration(value) for value in (*rest, rest[1] - rest[0]))
        yield fmt.share(sum(shares))
    for row in rows:
        yield from _signless(row["variant_ns"] - row["baseline_ns"])
    for found in why["contributions"]:
        yield from _signless(found["change_ns"])
    if why["gpu_change_share"] is not None:
        yield from (fmt.share(abs(why["gpu_change_share"])), fmt.share(1 + why["gpu_change_share"]))
    costs = data["launch_costs"]
    added = costs["added_cost_ns"]
    if added is not None:
        yield from (*_signless(added), *_signless(costs["pace_cost_ns"]))
        change = costs["calls_change"]
        yield fmt.duration(added / change if change else 0.0)


def _signless(change: float) -> Iterator[str]:
    yield fmt.duration(change)
    yield fmt.duration(abs(change))


def _change(ratio: float | None) -> Iterator[str]:
    if ratio is not None:
        yield fmt.share(ratio - 1)
        yield fmt.share(1 - ratio)
        yield f"{fmt.count(round(100 * (ratio - 1)))} %"
