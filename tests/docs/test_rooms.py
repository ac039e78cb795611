"""The page on the architecture is true: the picture of the rooms, the walks, and the counts of the house."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs"))

from generate_rooms import PAGE, SOURCES, circle, counts, page

#: Runs a command, and writes for each module which others were at work when it was first entered. What happens while
#: modules are loaded is left out.
_TRACER = """
import json, sys, threading
from warplens.cli.main import app

entered = {}

def module(frame):
    _, inside, path = frame.f_code.co_filename.rpartition("/warplens/")
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") if inside else None

def look(frame, event, _):
    name = module(frame) if event == "call" else None
    if name is None or name in entered:
        return
    at_work, outer = set(), frame
    while outer is not None:
        if outer.f_code.co_name == "<module>" and module(outer) is not None:
            return
        at_work.add(module(outer))
        outer = outer.f_back
    entered[name] = sorted(filter(None, at_work - {name}))

threading.setprofile(look)
sys.setprofile(look)
try:
    app(sys.argv[2:])
except SystemExit as end:
    assert not end.code, end.code
sys.setprofile(None)
with open(sys.argv[1], "w") as file:
    json.dump(entered, file)
"""


def test_the_picture_of_the_rooms_is_what_the_imports_give():
    assert PAGE.read_text("utf-8") == page(), "run `python docs/generate_rooms.py`"


def test_no_modules_import_each_other_in_a_circle():
    assert circle(grimp.build_graph("warplens", exclude_type_checking_imports=True, cache_dir=None)) == []


@pytest.mark.parametrize(("command", "most"), [("kernels", 8), pytest.param("report", 14, marks=pytest.mark.slow)])
def test_a_walk_names_modules_that_are_asked_by_one_before(command, most, tmp_path):
    walk = _walk(command)
    assert walk[0] == "cli.main"
    assert len(walk) <= most
    words = [command, "demo:deit224_bs1_baseline", *(["--output", str(tmp_path)] if command == "report" else [])]
    run = subprocess.run(
        [sys.executable, "-c", _TRACER, tmp_path / "entered.json", *words],
        env={**os.environ, "PYTHONPATH": str(SOURCES.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    entered = json.loads((tmp_path / "entered.json").read_text("utf-8"))
    for place, module in enumerate(walk[1:], start=1):
        assert module in entered, f"{module} has no part in warplens {command}"
        assert set(entered[module]) & set(walk[:place]), f"{module} is asked by {entered[module]}"


def _walk(command):
    """The modules of a walk: the first of each step."""
    steps = PAGE.read_text("utf-8").partition(f"`warplens {command} profile.sqlite`\n\n")[2].partition("\n\n")[0]
    return [re.search(r"`([\w.]+)`", step)[1] for step in steps.splitlines()]


def test_the_counts_of_the_house_are_those_of_the_source():
    text = PAGE.read_text("utf-8")
    for row, number in counts().items():
        stated = int(re.search(rf"^\| {row} \| [\d,]+ \| ([\d,]+) \|", text, re.MULTILINE)[1].replace(",", ""))
        assert stated == pytest.approx(number, rel=0.02), f"{row}: run `python docs/generate_rooms.py`"


def test_modules_and_names_that_texts_of_the_sources_speak_of_exist():
    modules = {}
    for path in SOURCES.rglob("*.py"):
        parts = ("warplens", *path.relative_to(SOURCES).with_suffix("").parts)
        modules[".".join(parts).removesuffix(".__init__")] = path.read_text(encoding="utf-8")
    missing = set()
    for text in modules.values():
        for spoken in set(re.findall(r"`(warplens(?:\.\w+){2,})`", text)) - set(modules):
            module, _, name = spoken.rpartition(".")
            if module not in modules:
                module, _, name = module.rpartition(".")  # a member of a class
            defined = rf"^(?:(?:def|class) )?{name}\b|^from .* import .*\b{name}\b"
            missing |= set() if re.search(defined, modules.get(module, ""), re.MULTILINE) else {spoken}
    assert not missing
