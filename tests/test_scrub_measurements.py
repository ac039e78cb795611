"""A shared measurements file tells of the GPU and the program, and of nobody who ran it."""

import json
import lzma

import pytest

from tests import shipped
from warplens.errors import UnreadableInputError
from warplens.readers.measurements import read_measurements
from warplens.scrub import scrub

STORED = shipped.files("measurements", "token_reduction_methods.json.xz")[0]


@pytest.fixture
def plain(tmp_path):
    """A real file, one cell of which failed."""
    document = json.loads(lzma.decompress(STORED.read_bytes()))
    record = document["measurements"][1]
    document["measurements"][1] = {"cell": record["cell"], "status": "failed", "reason": "no such file"}
    path = tmp_path / "plain.json"
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def spoiled(plain, tmp_path):
    """The same after a machine's owner got in: new members, a command line, paths in texts."""
    document = json.loads(plain.read_text())
    document["host"] = "gpu17.example.org"
    document["command"] = "WANDB_API_KEY=abcdef0123456789 python /home/ann/train.py"
    document["environment"]["user"] = "ann"
    document["measurements"][0]["notes"] = "ask ann@example.org"
    document["measurements"][1]["reason"] = "no such file: /home/ann/data/images.bin, says ann"
    path = tmp_path / "spoiled.json"
    path.write_text(json.dumps(document))
    return path


def test_nobody_is_left_in_the_copy(spoiled, tmp_path):
    scrub(spoiled, tmp_path / "copy.json")
    text = (tmp_path / "copy.json").read_text()
    for word in ("gpu17", "ann", "WANDB", "abcdef0123456789", "example.org", "/home"):
        assert word not in text


def test_the_figures_are_the_same(plain, spoiled, tmp_path):
    report = scrub(spoiled, tmp_path / "copy.json.xz")
    before, after = read_measurements(plain), read_measurements(tmp_path / "copy.json.xz")
    assert report.compared == 3
    assert after.samples.equals(before.samples)
    assert after.cells.drop("reason").equals(before.cells.drop("reason"))
    assert after.environment == before.environment
    assert after.details == before.details


def test_our_own_command_comes_along(tmp_path):
    scrub(STORED, tmp_path / "copy.json")
    assert read_measurements(tmp_path / "copy.json").command == read_measurements(STORED).command is not None


def test_another_version_is_refused(tmp_path):
    path = tmp_path / "future.json"
    path.write_text('{"schema": "warplens.measurements/9", "measurements": []}')
    with pytest.raises(UnreadableInputError, match=r"future\.json: its schema is 'warplens\.measurements/9'"):
        scrub(path, tmp_path / "copy.json")
    assert not (tmp_path / "copy.json").exists()
