"""Reads a Perfetto trace back with Google's own schema, and plays its slices, as the trace processor would."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema


class Slice(NamedTuple):
    """One slice on one track."""

    track: str
    name: str
    category: str
    start_ns: int
    end_ns: int
    arguments: tuple[tuple[str, int], ...]
    flows: tuple[int, ...]
    ends_flows: tuple[int, ...]


class Drawn(NamedTuple):
    """What a viewer would show."""

    slices: list[Slice]
    counters: dict[str, list[tuple[int, int]]]
    tracks: dict[int, str]


def play(path: Path) -> Drawn:
    """The slices of a trace, matched begin to end as a stack on each track; fails where they do not nest."""
    trace = schema.Trace()
    trace.ParseFromString(path.read_bytes())
    names: dict[int, str] = {}
    parents: dict[int, int] = {}
    dictionaries: dict[str, dict[int, str]] = {"names": {}, "categories": {}, "arguments": {}}
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id == 1
        if packet.HasField("track_descriptor"):
            descriptor = packet.track_descriptor
            assert descriptor.uuid not in names, "a track is declared once"
            names[descriptor.uuid] = descriptor.name
            parents[descriptor.uuid] = descriptor.parent_uuid
        for key, entries in (
            ("names", packet.interned_data.event_names),
            ("categories", packet.interned_data.event_categories),
            ("arguments", packet.interned_data.debug_annotation_names),
        ):
            dictionaries[key].update({entry.iid: entry.name for entry in entries})
    path_of = {uuid: _path(uuid, names, parents) for uuid in names}
    # The processor sorts by time and keeps the order of arrival within one instant.
    events = sorted((packet for packet in trace.packet if packet.HasField("track_event")), key=lambda p: p.timestamp)
    slices: list[Slice] = []
    counters: dict[str, list[tuple[int, int]]] = defaultdict(list)
    opened: dict[int, list[Any]] = defaultdict(list)
    for packet in events:
        event, track = packet.track_event, path_of[packet.track_event.track_uuid]
        if event.type == schema.TrackEvent.TYPE_SLICE_BEGIN:
            opened[event.track_uuid].append(packet)
        elif event.type == schema.TrackEvent.TYPE_SLICE_END:
            slices.append(_slice(track, opened[event.track_uuid].pop(), packet.timestamp, dictionaries))
        elif event.type == schema.TrackEvent.TYPE_INSTANT:
            slices.append(_slice(track, packet, packet.timestamp, dictionaries))
        else:
            counters[track].append((packet.timestamp, event.counter_value))
    assert not any(opened.values()), "every slice that begins also ends"
    return Drawn(slices, dict(counters), path_of)


def _path(uuid: int, names: dict[int, str], parents: dict[int, int]) -> str:
    above = parents[uuid]
    return names[uuid] if not above or not parents[above] else f"{_path(above, names, parents)}/{names[uuid]}"


def _slice(track: str, packet: Any, end: int, dictionaries: dict[str, dict[int, str]]) -> Slice:
    event = packet.track_event
    return Slice(
        track,
        dictionaries["names"][event.name_iid],
        dictionaries["categories"][event.category_iids[0]],
        packet.timestamp,
        end,
        tuple((dictionaries["arguments"][note.name_iid], note.int_value) for note in event.debug_annotations),
        tuple(event.flow_ids),
        tuple(event.terminating_flow_ids),
    )
