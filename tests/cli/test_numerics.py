"""`warplens numerics`: files of tensors as people save them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

VALUES = np.random.default_rng(3).normal(size=(4, 8))


@pytest.fixture(autouse=True)
def _files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("exact.npy", VALUES)
    np.save("half.npy", VALUES.astype(np.float16))
    np.savez("many.npz", out=VALUES.astype(np.float32), grad=VALUES, steps=np.arange(3))
    wrong = VALUES.astype(np.float32)
    wrong[0, 0] = np.nan
    np.savez("wrong.npz", out=wrong, grad=VALUES * 1.01)


def test_both_are_held_against_the_exact_values(warplens):
    run = warplens("numerics", "half.npy", "half.npy", "--exact", "exact.npy", "-f", "json")

    same, first, second = run.data["rows"]
    assert (same["identical_share"], same["ulp_max"]) == (1.0, 0.0)
    assert first["max_abs"] == second["max_abs"] == np.abs(VALUES.astype(np.float16) - VALUES).max()


def test_tensors_are_paired_by_name_and_a_gate_can_fail(warplens):
    run = warplens("numerics", "wrong.npz", "many.npz", "--fail-on", "0.001")

    assert run.code == 1
    assert "beyond the limit of 0.001: grad\n" in run.err
    assert "NaN or infinite, and not the same in both: out\n" in run.err
    assert "only in one of the files: steps\n" in run.err
    assert "Elements by their difference in units of the last place" in run.out
    assert warplens("numerics", "many.npz", "many.npz", "--fail-on", "0").code == 0


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("first", "second", "failed"),
    [
        ([1.0, 0.0], [0.0, 0.0], True),
        ([0.0, -0.0], [0.0, 0.0], False),
        ([NAN, 1.0, 2.0], [0.0, 1.0, NAN], True),
        ([NAN, 1.0], [INF, 1.0], True),
        ([-INF, 1.0], [INF, 1.0], True),
        ([NAN, INF, 1.0], [NAN, INF, 1.0], False),
        ([3, 1, 2], [1, 2, 3], True),
        ([2**62, 1], [2**62 + 1, 1], True),
        ([True, False], [True, True], True),
        ([1j, 2j], [1j, 3j], True),
        (np.array([2**64 - 1, 1], dtype=np.uint64), [-1, 1], True),
    ],
)
def test_a_gate_fails_on_results_that_have_no_relative_error(first, second, failed, warplens):
    np.savez("a.npz", out=np.asarray(first), same=VALUES)
    np.savez("b.npz", out=np.asarray(second), same=VALUES)

    run = warplens("numerics", "a.npz", "b.npz", "--fail-on", "0")

    assert run.code == int(failed)
    assert ("out" in run.err) == failed


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.npy", b"no array", "cannot be read as tensors"),
        ("a.txt", b"1 2 3", "its name ends in .txt"),
        ("absent.npy", None, "there is no such file"),
    ],
)
def test_other_files_are_refused_in_one_line(name, content, said, warplens):
    if content is not None:
        Path(name).write_bytes(content)
    run = warplens("numerics", name, "exact.npy")

    assert run.code == 2
    assert said in run.err
    assert len(run.err.splitlines()) == 1


def test_nothing_in_a_file_is_executed(warplens):
    np.save("objects.npy", np.asarray([{"a": 1}], dtype=object), allow_pickle=True)
    assert warplens("numerics", "objects.npy", "exact.npy").code == 2


def test_files_of_pytorch_are_read_with_their_nested_names(warplens):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    values = torch.tensor(VALUES)
    torch.save({"layer": [values.bfloat16()], "step": 3}, "a.pt")
    torch.save({"layer": [values]}, "b.pt")

    run = warplens("numerics", "a.pt", "b.pt", "-f", "json")

    (row,) = run.data["rows"]
    assert (row["tensor"], row["ulp_format"], row["ulp_max"]) == ("layer.0", "bfloat16", 0.0)


def test_safetensors_are_read_by_their_names_and_compared_in_their_formats(warplens):
    pytest.importorskip("torch", reason="torch is not installed")
    saving = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    half = VALUES.astype(np.float16)
    saving.save_file({"out": half, "grad": VALUES}, "a.safetensors")
    saving.save_file({"out": np.nextafter(half, np.float16(np.inf)), "grad": VALUES}, "b.safetensors")

    run = warplens("numerics", "a.safetensors", "b.safetensors", "-f", "json")

    rows = {row["tensor"]: row for row in run.data["rows"]}
    assert (rows["out"]["ulp_format"], rows["out"]["ulp_max"], rows["grad"]["ulp_max"]) == ("float16", 1.0, 0.0)
