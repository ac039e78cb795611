"""`warplens scrub` and `warplens export`: the same numbers, nothing of what identifies, and no file written over."""

from __future__ import annotations


def test_the_profile_itself_is_never_overwritten(warplens, export):
    before = export.read_bytes()
    run = warplens("export", export, "--to", "perfetto", "-o", export)
    assert run.code == 2
    assert "the profile itself" in run.err
    assert export.read_bytes() == before
