"""The picture of the rooms is drawn from the imports, which run in no circle."""

import sys
from pathlib import Path

import grimp

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs"))

from generate_rooms import PAGE, circle, page


def test_the_picture_of_the_rooms_is_what_the_imports_give():
    assert PAGE.read_text("utf-8") == page(), "run `python docs/generate_rooms.py`"


def test_no_modules_import_each_other_in_a_circle():
    assert circle(grimp.build_graph("warplens", exclude_type_checking_imports=True, cache_dir=None)) == []
