"""Scrubbed traces of the PyTorch profiler: nothing that identifies is left, everything that is analysed is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import warplens.readers.kineto.scrub
from tests.readers.kineto_traces import annotation, event, kernel, launch, operator
from tests.shipped import OTHERS
from warplens.errors import UnreadableInputError, UsageError
from warplens.readers import read
from warplens.scrub import ScrubError, check, is_rewriting, scrub
from warplens.secrets import FORBIDDEN, Cleaner, Secrets, has_other_values

USER, HOST, JOB = "anneliese", "gpu-node-17.physics.example", "zebra-retrain-8842x"
#: One stands in each place that was seen to hold what identifies.
IDENTIFYING = (USER, HOST, JOB, "Project Zebra", "10.20.30.40", "someone@example.org", "secret_argument", "zebra-train")


def python_frame(name: str) -> dict[str, Any]:
    return event("python_function", name, 0, 90, **{"Python id": 1, "Python parent id": None})


def naming(what: str, value: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": 100, "tid": 0, "ts": 0, "args": {"name": value}}


EVENTS = [
    kernel(10.001, 5.25, 1),
    kernel(20, 5, 2),
    launch(1, 2, 1),
    launch(4, 2, 2),
    operator("aten::mm", 0, 8, **{"Input Dims": [[2, 3], [3, 4]], "secret_argument": f"/home/{USER}"}),
    operator(
        "aten::load",
        30,
        8,
        **{"Concrete Inputs": [f"/home/{USER}/Project Zebra/a.bin"], "Call stack": f"/home/{USER}/z.py(3): f"},
    ),
    annotation("step", 0, 40),
    annotation(f"run of {USER} on {HOST}", 1, 2),
    annotation(f"job {JOB}, mail someone@example.org at 10.20.30.40", 3, 2),
    annotation("gemm of anneliesesque size", 5, 2),
    python_frame(f"/home/{USER}/Project Zebra/train.py(12): main"),
    python_frame(f"/home/{USER}/env/lib/python3.11/site-packages/torch/nn/modules/linear.py(114): forward"),
    python_frame("torch/nn/modules/linear.py(114): forward"),
    naming("process_name", "zebra-train"),
    naming("thread_name", "thread 101 (zebra-train)"),
    naming("thread_name", "stream 7"),
    {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 100, "tid": 101, "ts": 50, "dur": 1, "user": USER},
]
HEADER = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132, "uuid": "deed2697-20f2"}],
    "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8, "hostname": HOST},
    "host_name": HOST,
    "username": USER,
    "mast_job_name": JOB,
    "INFO": [f"INFO:2026-01-01 {HOST} Config.cpp:42] Enabled by /home/{USER}/libkineto.conf"],
    "traceName": f"/home/{USER}/Project Zebra/trace.json",
    "displayTimeUnit": "ms",
    "baseTimeNanoseconds": 1790857026000000000,
}


@pytest.fixture
def trace(tmp_path):
    """A trace in whose every corner something identifies."""
    members = list(HEADER.items())
    members.insert(3, ("traceEvents", EVENTS))
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(dict(members)), "utf-8")
    return path


@pytest.fixture
def target(tmp_path):
    return tmp_path / "shared.json"


def events_of(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_bytes())["traceEvents"]
    return found


def names(path: Path, category: str) -> list[str]:
    return [event["name"] for event in events_of(path) if event.get("cat") == category]


def test_nothing_that_identifies_is_left_in_the_bytes_of_the_copy(trace, target):
    original = trace.read_bytes()
    scrub(trace, target)
    content = target.read_bytes().replace(b"anneliesesque", b"")
    for planted in (*IDENTIFYING, "deed2697"):
        assert planted.encode() in original
        assert planted.encode() not in content


def test_only_known_members_come_along(trace, target):
    scrub(trace, target)
    copy = json.loads(target.read_bytes())
    assert set(copy) == {
        *("schemaVersion", "deviceProperties", "distributedInfo", "displayTimeUnit", "baseTimeNanoseconds"),
        "traceEvents",
    }
    assert copy["deviceProperties"] == [{"id": 0, "name": "NVIDIA H200", "numSms": 132}]
    assert copy["distributedInfo"] == {"backend": "nccl", "rank": 3, "world_size": 8}


def test_a_name_keeps_what_does_not_identify(trace, target):
    scrub(trace, target)
    assert names(target, "user_annotation") == [
        "step",
        "run of [removed] on [removed]",
        "job [removed], mail [removed] at [removed]",
        "gemm of anneliesesque size",
    ]
    assert names(target, "kernel") == names(trace, "kernel")


def test_python_functions_keep_their_file_and_a_library_its_place(trace, target):
    scrub(trace, target)
    mine, installed, relative = names(target, "python_function")
    assert mine.startswith("[path ")
    assert mine.endswith("/train.py(12): main")
    assert installed == relative == "torch/nn/modules/linear.py(114): forward"


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("okapi/jane_doe/trainer.py(12): fit", "[path 1]/trainer.py(12): fit"),
        ("okapi project\\trainer.py(12): fit", "[path 1]\\trainer.py(12): fit"),
        ("/opt/lib/site-packages/okapi/trainer.py(12): fit", "[path 1]/trainer.py(12): fit"),
        ("trainer.py(12): fit", "trainer.py(12): fit"),
        ("torch/nn/modules/linear.py(114): forward", "torch/nn/modules/linear.py(114): forward"),
        ("[path 7]/trainer.py(12): fit", "[path 7]/trainer.py(12): fit"),
        ("<built-in method okapi/x of type>", "<built-in method okapi/x of type>"),
        ("nn.Module: Okapi/Linear_0", "nn.Module: Okapi/Linear_0"),
    ],
)
def test_folders_of_source_files_are_kept_in_known_libraries_alone(tmp_path, target, name, kept):
    source = tmp_path / "trace.json"
    source.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [*EVENTS[:4], python_frame(name)]}))
    assert check(source).is_clean is (name == kept)
    scrub(source, target)
    assert names(target, "python_function") == [kept]
    assert check(target).is_clean


def test_values_around_the_events_in_annotations_are_removed_or_counted(tmp_path, target):
    source = tmp_path / "trace.json"
    members = {"schemaVersion": 1, "run": "okapi-retrain", "args": ["okapi", "threading"]}
    events = [annotation("okapi-retrain epoch", 0, 40), annotation("okapi", 50, 5)]
    frames = [python_frame("threading.py(982): run"), python_frame("torch/okapi.py(3): okapi")]
    source.write_text(json.dumps({**members, "traceEvents": [*EVENTS[:4], *events, *frames]}))
    assert scrub(source, target).left == 1, "okapi may be a word; threading is a module of Python"
    assert names(target, "user_annotation") == ["[removed] epoch", "okapi"]


def test_threads_and_processes_keep_names_that_frameworks_give(trace, target):
    scrub(trace, target)
    named = [event["args"]["name"] for event in events_of(target) if event["ph"] == "M"]
    assert named == ["[removed]", "[removed]", "stream 7"]


def test_times_keep_every_digit_they_had(tmp_path, target):
    times = ["1682725898237042.123", "0.001", "9007199254740993.125", "12345678901234567890"]
    events = ",".join(f'{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":{time},"dur":1}}' for time in times)
    source = tmp_path / "trace.json"
    source.write_text(f'{{"traceEvents":[{events}]}}')
    scrub(source, target)
    content = target.read_text()
    assert all(f'"ts":{time},' in content for time in times)


def test_the_trace_is_the_same_but_for_the_texts(trace, target):
    report = scrub(trace, target)
    before, after = read(trace), read(target)
    assert before.kernels.equals(after.kernels)
    assert before.api_calls.equals(after.api_calls)
    assert before.operators.drop("concrete_inputs").equals(after.operators.drop("concrete_inputs"))
    assert before.ranges.drop("name").equals(after.ranges.drop("name"))
    assert (after.capture.rank, after.capture.world_size) == (3, 8)
    assert report.compared == 15
    assert report.texts


def test_a_copy_that_says_something_else_is_discarded(trace, target, monkeypatch):
    monkeypatch.setattr(warplens.readers.kineto.scrub, "_MEMBERS", warplens.readers.kineto.scrub._MEMBERS - {"dur"})
    with pytest.raises(ScrubError, match=r"trace\.json: the copy does not say the same"):
        scrub(trace, target)
    assert list(target.parent.iterdir()) == [trace]


def test_a_copy_that_still_identifies_is_discarded(trace, target, monkeypatch):
    monkeypatch.setattr(Cleaner, "written", lambda _self, _place, text: text)
    with pytest.raises(ScrubError, match="was still in the copy"):
        scrub(trace, target)
    assert list(target.parent.iterdir()) == [trace]


def test_the_raw_bytes_are_searched_for_what_stood_around_the_events(trace, target, monkeypatch):
    monkeypatch.setattr(
        warplens.readers.kineto.scrub._Copy, "_naming", lambda _, event: {**event, "args": {"name": f"run by {JOB}"}}
    )
    with pytest.raises(ScrubError, match="was still in the copy"):
        scrub(trace, target)


def test_the_source_is_not_touched_and_nothing_is_overwritten(trace, target):
    trace.chmod(0o444)
    before = trace.read_bytes(), trace.stat().st_mtime_ns
    scrub(trace, target)
    assert (trace.read_bytes(), trace.stat().st_mtime_ns) == before
    with pytest.raises(UsageError, match="exists already"):
        scrub(trace, target)


def test_a_trace_that_is_a_list_of_events_is_read_too(tmp_path, target):
    source = tmp_path / "list.json"
    source.write_text(json.dumps(EVENTS[:4]))
    scrub(source, target)
    assert read(target).kernels.height == 2


def test_what_pytorch_has_written_against_the_rules_is_forgiven(tmp_path, target):
    source = tmp_path / "odd.json"
    source.write_text(
        '{"traceName": "C:\\Users\\anneliese\\x.json", "traceEvents": [\n'
        '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1,"dur":2,"args":{"queued": nan}},\n'
        '{"ph":"X","cat":"python_function","name":"C:\\Users\\anneliese\\a.py(3): f","pid":1,"tid":1,"ts":1,"dur":2},\n'
        "]}"
    )
    scrub(source, target)
    assert json.loads(target.read_bytes())["traceEvents"][1]["name"] == "[path 1]\\a.py(3): f"


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"{}",
        b"[",
        b"[1]",
        b'{"a": 1}',
        b'{"traceEvents": 3}',
        b'{"traceEvents": [',
        b'{"traceEvents": [1]}',
        b'{"traceEvents": [{"ph": "X", "name": "cut',
        b'{"traceEvents": [{"ph": }]}',
        b'{"traceEvents": [{"args": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
        b'{"traceEvents": [{"args": ' + b"[" * 100_000,
        b'{"traceEvents" [{}]}',
    ],
    ids=lambda content: content[:30].decode(),
)
def test_what_is_no_whole_trace_is_refused_in_one_line(content, tmp_path):
    source = tmp_path / "trace.json"
    source.write_bytes(content)
    with pytest.raises(UnreadableInputError, match=r"^trace\.json: [^\n]+$"):
        scrub(source, tmp_path / "shared.json")
    assert list(tmp_path.iterdir()) == [source]


def test_a_trace_without_end_does_not_fill_the_memory_with_one_value(tmp_path, monkeypatch):
    monkeypatch.setattr("warplens.readers.kineto.document.EVENT_BYTES", 2**20)
    source = tmp_path / "trace.json"
    source.write_bytes(b'{"traceEvents": [{"name": "' + b"a" * 2**24)
    with pytest.raises(UnreadableInputError):
        scrub(source, tmp_path / "shared.json")


@pytest.mark.parametrize("piece", [7, 64, 1000])
def test_the_pieces_in_which_a_file_is_read_do_not_matter(trace, target, tmp_path, piece, monkeypatch):
    scrub(trace, target)
    monkeypatch.setattr("warplens.readers.kineto.document._WINDOW_BYTES", piece)
    scrub(trace, tmp_path / "pieces.json")
    assert (tmp_path / "pieces.json").read_bytes() == target.read_bytes()


_FRAME_PIECES = st.sampled_from(
    ["/", "\\", "home", "Ann Lee", "..", "~", "C:", "x.py(3): f", " (copy)", ";", "lib/python3.11/"]
)


@given(st.lists(_FRAME_PIECES, max_size=8).map("".join))
def test_no_python_function_keeps_the_path_of_a_home_folder(text):
    assert not FORBIDDEN.search(Cleaner(Secrets()).python("x", text.encode()))


def test_marks_stand_for_anything_and_nothing_else_may_differ():
    assert is_rewriting("read /home/a/b now", "read [path 1] now")
    assert is_rewriting("/opt/x/site-packages/torch/a.py(1): f", "torch/a.py(1): f")
    assert not is_rewriting("forward", "backward")
    assert not is_rewriting("read /home/a/b now", "write [path 1] now")


@pytest.mark.parametrize("path", sorted(OTHERS.glob("kineto/hta_*")) or [None], ids=lambda path: path and path.name)
def test_analyses_of_scrubbed_traces_of_others_are_the_same(path, target):
    """`scrub` itself compares all tables; here it must succeed, and the bytes hold nobody."""
    if path is None:
        pytest.skip("no traces of others are at hand (see WARPLENS_SHARED)")
    if path.stat().st_size > 200_000:
        pytest.skip("large; scrubbed by hand")
    scrub(path, target)
    content = target.read_bytes()
    assert not FORBIDDEN.search(content)
    for word in (b"mojif", b"sraikund", b"facebook.com", b"twshared", b"traceName", b"pyper:"):
        assert word not in content


@pytest.mark.parametrize(
    "text", ["1" * 5_000 + "x", "1.1." * 300 + "!", "1e5" * 300 + "!", "[" + "12, " * 300 + "s3://b]"]
)
def test_inputs_of_many_digits_are_looked_at_once(text):
    """A pattern that tried all ways to split the digits would not end in a lifetime."""
    assert has_other_values(text)


@pytest.mark.parametrize(
    "text",
    [
        "AWS_SECRET_ACCESS_KEY=zebra/K7MDENG",
        "DB_PASSWORD='zebra'",
        '{"password": "zebra"}',
        r"{\"token\": \"zebra\"}",
        "authtoken=zebra",
        "password=12zebra",
        "run --api-key zebra",
        "Authorization: Basic zebra",
        "Bearer zebra123456789",
        "passwd zebra2",
        "login, password is 2zebra",
        "SharedAccessKey=zebra",
        "glpat-zebraAbCdEfGhIjKlMn",
        "key hf_" + "zebra" + "AbCdEfGhIjKlMnOpQrStUvWxYzaBc",
        "-----BEGIN RSA PRIVATE KEY-----\nzebra\n/ebra=\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\\nzebra",
    ],
)
def test_a_value_that_a_text_calls_a_secret_is_removed(text):
    cleaned = Cleaner(Secrets()).text("x", text)
    assert "zebra" not in cleaned
    assert Cleaner(Secrets()).text("x", cleaned) == cleaned


@pytest.mark.parametrize(
    "text",
    [
        "token: 12",
        "tokens=512",
        "key value",
        "basic block 3",
        "bearer of news",
        "secretary",
        "password hashing",
        "skip_connection_block_3",
        "rk4_integrator_step_2",
        "hf_forward_of_layer_12",
        "hf_Qwen2ForCausalLM",
    ],
)
def test_words_of_programs_are_no_secrets(text):
    assert Cleaner(Secrets()).text("x", text) == text
