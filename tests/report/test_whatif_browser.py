"""The what-if panel in a real browser: every choice shows the numbers of the JSON, by mouse, keyboard and address."""

from __future__ import annotations

import json

import pytest

import warplens
from tests import shipped
from tests.report.conftest import Visit

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whatif")
    report = warplens.report(shipped.capture("lm_small_ctx256_train.sqlite.xz"))
    return report.save(folder / "report.html"), json.loads(report.to_json())["data"]["profiles"][0]["diagnosis"]


@pytest.fixture
def visit(browser, saved):
    made = Visit(browser, saved[0], "what-if")
    made.page.wait_for_selector("#what-if-view[data-state=ready]")
    yield made
    assert made.trouble == []


def chosen(page) -> tuple[str | None, int]:
    view = page.locator("#what-if-view")
    return view.get_attribute("data-chosen"), int(view.get_attribute("data-step-ns"))


def test_every_choice_shows_what_the_json_holds(visit, saved):
    page, (path, diagnosis) = visit.page, saved
    changes = diagnosis["what_if"]["changes"]
    assert any(len(change["findings"]) == 2 for change in changes)
    for change in changes:
        ids = "+".join(change["findings"])
        page.goto(f"{path.as_uri()}#what-if/{ids}")
        page.wait_for_selector(f"#what-if-view[data-chosen='{ids}']")
        assert chosen(page) == (ids, change["step_ns"])
        assert page.locator("#what-if-view .then b").inner_text().strip() == f"{change['expected']:.2f}× as fast:"
        # The bar is as long as the step: its parts are shares of the longer bar.
        parts = (
            page.locator("#what-if-view .bar")
            .nth(1)
            .locator("rect")
            .evaluate_all("rects => rects.map(rect => parseFloat(rect.getAttribute('width')))")
        )
        longest = max(diagnosis["what_if"]["step_ns"], *(each["step_ns"] for each in changes))
        assert sum(parts) == pytest.approx(100 * change["step_ns"] / longest, abs=0.05)


def test_two_remedies_can_be_checked_with_the_keyboard_and_no_third(visit, saved):
    page, (_, diagnosis) = visit.page, saved
    boxes = page.locator("#what-if-view input[type=checkbox]")
    first, second = (diagnosis["findings"][place]["id"] for place in (0, 1))
    assert chosen(page)[0] == first, "it opens on what the answer says"
    boxes.nth(1).focus()
    page.keyboard.press("Space")
    assert chosen(page)[0] == f"{first}+{second}"
    assert boxes.nth(2).is_disabled()
    code = page.locator("#what-if-view pre").inner_text()
    assert all(diagnosis["findings"][place]["remedies"][0]["action"] in code for place in (0, 1))
    assert code.endswith("warplens compare lm_small_ctx256_train.sqlite.xz AFTER")


def test_all_are_checked_by_one_button_and_what_is_not_predicted_says_so(visit, saved):
    page, (_, diagnosis) = visit.page, saved
    every = max((change["findings"] for change in diagnosis["what_if"]["changes"]), key=len)
    assert len(every) > 3, "sets of three are no choice of the page"
    page.get_by_role("button", name="Check all").click()
    assert chosen(page)[0] == "+".join(every)
    page.locator("#what-if-view input[type=checkbox]").nth(0).uncheck()
    view = page.locator("#what-if-view")
    assert view.get_attribute("data-chosen") is None
    assert f"--if {','.join(every[1:])}" in view.inner_text()


def test_the_recorded_and_the_predicted_step_are_drawn_to_one_scale(visit, saved):
    """The predicted step is as long as the JSON says; a pair is told by its numbers alone."""
    page, (path, diagnosis) = visit.page, saved
    what_if = diagnosis["what_if"]
    assert "pictures" not in what_if, "the picture is for the page alone"
    for change in what_if["changes"]:
        ids = "+".join(change["findings"])
        page.goto(f"{path.as_uri()}#what-if/{ids}")
        page.wait_for_selector(f"#what-if-view[data-chosen='{ids}']")
        steps = page.locator("#what-if-view .step")
        lengths = steps.evaluate_all("each => each.map(step => [step.dataset.step, Number(step.dataset.lengthNs)])")
        assert lengths[0][0] == "recorded"
        if len(change["findings"]) > 1:
            assert len(lengths) == 1
            assert "single" in page.locator("#what-if-view .drawn").inner_text()
            continue
        assert lengths[1] == [ids, change["step_ns"]]
        widths = steps.evaluate_all(
            "each => each.map(step => [...step.querySelectorAll('.lane rect')].map(rect => rect.getAttribute('width')))"
        )
        assert len(widths[0]) == len(widths[1]) > 1, "the host and at least a stream, in both"
        measured, predicted = (float(each[0]) for each in widths)
        assert predicted / measured == pytest.approx(change["step_ns"] / lengths[0][1], rel=2e-3)
        right = (
            steps.nth(1)
            .locator("path")
            .evaluate_all("each => each.map(path => path.getBBox()).map(box => box.x + box.width)")
        )
        assert right, "something ran"
        assert max(right) <= predicted + 1


@pytest.mark.slow
def test_steps_drawn_for_nine_profiles_take_little_of_the_page():
    """A page of the whole demo has as many as any."""
    from warplens.report.whatif import panel

    sizes = []
    for path in shipped.files("captures", "*.sqlite.xz"):
        found = warplens.diagnose(path).diagnosis
        if found.what_if is not None:
            sizes.append(len(json.dumps(panel(found, found.what_if, path.name, "step").get("drawn"))))
    assert sizes
    assert sum(sizes) < 150_000
