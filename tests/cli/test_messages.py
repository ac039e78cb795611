"""Standard error: progress for people only, and notes unless they are not wanted."""

from __future__ import annotations

import io
import time
from types import SimpleNamespace

import pytest

from warplens.cli import process as messages


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _fresh():
    messages.start_afresh()


@pytest.fixture
def terminal(monkeypatch):
    """Standard error is a terminal, and whatever lasts at all lasts long enough to be shown."""
    stream = Terminal()
    _redirect(monkeypatch, stream)
    monkeypatch.setattr(messages, "_SILENT_S", 0)
    monkeypatch.setattr(messages, "_REDRAW_S", 0.001)
    return stream


def _redirect(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> None:
    # Not `sys.stderr` itself: pytest puts its own stream back between a fixture and the test.
    monkeypatch.setattr(messages, "sys", SimpleNamespace(stderr=stream))


def wait_for(stream: io.StringIO, text: str) -> None:
    deadline = time.monotonic() + 10
    while text not in stream.getvalue():
        assert time.monotonic() < deadline, stream.getvalue()
        time.sleep(0.001)


def test_progress_shows_what_is_going_on_and_leaves_an_empty_line(terminal):
    with messages.progress("reading small.sqlite") as tell:
        wait_for(terminal, "reading small.sqlite … 0 s")
        tell("analysing")
        wait_for(terminal, "analysing … 0 s ")  # padded over the longer text before it

    last = terminal.getvalue().split("\r")[-2:]
    assert last[0].strip() == ""
    assert last[1] == ""


def test_what_is_over_within_a_second_shows_no_progress(terminal, monkeypatch):
    monkeypatch.setattr(messages, "_SILENT_S", 1.0)

    with messages.progress("reading small.sqlite"):
        pass

    assert terminal.getvalue() == ""


def test_progress_goes_to_terminals_only(monkeypatch):
    stream = io.StringIO()
    _redirect(monkeypatch, stream)
    monkeypatch.setattr(messages, "_SILENT_S", 0)

    with messages.progress("reading small.sqlite"):
        time.sleep(0.01)

    assert stream.getvalue() == ""


def test_quiet_silences_progress_and_notes_but_not_errors(terminal):
    messages.be_quiet()
    with messages.progress("reading small.sqlite"):
        time.sleep(0.01)
    messages.note("caution: few steps")
    messages.complain("no such file")

    assert terminal.getvalue() == "error: no such file\n"


def test_the_progress_of_a_name_with_control_characters_stays_on_its_line(terminal):
    with messages.progress("reading \x1b[2Jbad\nname.sqlite"):
        wait_for(terminal, "bad name.sqlite")

    assert "\x1b" not in terminal.getvalue()
    assert "\n" not in terminal.getvalue()
