"""What a Chrome trace of the PyTorch profiler says about its operators, read event by event in plain Python.

Slow and independent of Warplens: `json`, decimal numbers and one stack a thread. Kernels find their operator by the
profiler's external id (not by thread and time), backward operators their forward operator by the recorded arrows (not
by sequence numbers). Sums follow `torch.profiler`'s `key_averages`, but for one thing: what lies inside an operator of
the same name is not added to the name's inclusive times again.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

_GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(eq=False)
class Event:
    """One operator (`is_call` false) or CUDA API call."""

    name: str
    start: Decimal
    end: Decimal
    is_call: bool
    external_id: int | None
    parent: Event | None = None
    children: list[Event] = field(default_factory=list)
    forward: Event | None = None

    @property
    def duration(self) -> Decimal:
        return self.end - self.start

    def and_around(self) -> Iterator[Event]:
        event: Event | None = self
        while event is not None:
            yield event
            event = event.parent


def totals(path: Path) -> dict[str, dict[str, int]]:
    """By operator name: `calls`, `host_ns`, `host_self_ns`, `gpu_ns`, `gpu_self_ns`, `backward_ns`, `total_ns`."""
    events = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)["traceEvents"]
    operators = _nested(events)
    _follow_arrows(events, operators)
    by_id = {operator.external_id: operator for operator in operators}
    sums: dict[str, dict[str, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
    for operator in operators:
        own = sums[operator.name]
        own["calls"] += 1
        own["host_self_ns"] += operator.duration - sum(child.duration for child in operator.children)
        above = operator.parent
        if above is None or all(around.name != operator.name for around in above.and_around()):
            own["host_ns"] += operator.duration
    for event in events:
        if event.get("cat") in _GPU_WORK:
            _charge(sums, by_id[event["args"]["External id"]], Decimal(event["dur"]))
    thousand = {
        name: {key: value * (1 if key == "calls" else 1000) for key, value in own.items()} for name, own in sums.items()
    }
    return {name: {key: int(value) for key, value in own.items()} for name, own in thousand.items()}


def _charge(sums: dict[str, dict[str, Decimal]], operator: Event, duration: Decimal) -> None:
    sums[operator.name]["gpu_self_ns"] += duration
    launched = {around.name for around in operator.and_around()}
    forward = next((around.forward for around in operator.and_around() if around.forward is not None), None)
    backward = set() if forward is None else {around.name for around in forward.and_around()}
    for key, names in (("gpu_ns", launched), ("backward_ns", backward), ("total_ns", launched | backward)):
        for name in names:
            sums[name][key] += duration


def _nested(events: list[dict[str, Any]]) -> list[Event]:
    threads: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in ("cpu_op", "cuda_runtime", "cuda_driver"):
            start = Decimal(event["ts"])
            threads[event["tid"]].append(
                Event(
                    event["name"],
                    start,
                    start + Decimal(event["dur"]),
                    event["cat"] != "cpu_op",
                    event["args"].get("External id"),
                )
            )
    for mine in threads.values():
        stack: list[Event] = []
        for event in sorted(mine, key=lambda event: (event.start, -event.duration, event.is_call)):
            while stack and stack[-1].end <= event.start:
                stack.pop()
            if stack:
                event.parent = stack[-1]
                stack[-1].children.append(event)
            stack.append(event)
    return [event for mine in threads.values() for event in mine if not event.is_call]


def _follow_arrows(events: list[dict[str, Any]], operators: list[Event]) -> None:
    starting: dict[Decimal, list[Event]] = defaultdict(list)
    for operator in operators:
        starting[operator.start].append(operator)
    ends: dict[Any, dict[str, Event]] = defaultdict(dict)
    for event in events:
        if event.get("cat") == "fwdbwd":
            ends[event["id"]][event["ph"]] = starting[Decimal(event["ts"])][0]
    for pair in ends.values():
        pair["f"].forward = pair["s"]
        around = pair["f"].parent
        if around is not None and around.name.startswith("autograd::engine::evaluate_function"):
            around.forward = pair["s"]
