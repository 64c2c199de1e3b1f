"""``temper accept``: a user keeps artifacts after an edit that changes no result."""

from own_script import MEASURES, Desk

from pipeline import Store
from pipeline.store.catalog import Catalog

ROUND = ("round(value, 2)", "round(value, ndigits=2)")
SQUARE = ("self.width * self.width", "self.width**2")


def cut(source: str) -> tuple[str, str, str, str]:
    """The imports, classes, steps and main block of the script."""
    marks = [source.index(mark) for mark in ("@dataclass", "def rounded", "if __name__")]
    return (
        source[: marks[0]],
        source[marks[0] : marks[1]],
        source[marks[1] : marks[2]],
        source[marks[2] :],
    )


def key_of(desk: Desk, shape: str, step: str = "measure") -> str:
    history = Catalog(Store(str(desk.folder / "store"))).history(step)
    return next(m.key for m in history if shape in str(m.recipe))


def test_what_is_accepted_does_not_run_again(desk: Desk) -> None:
    desk.edit(*SQUARE)
    explained = desk.temper("explain", "measure@" + key_of(desk, "Square"))
    assert "it has changed; temper accept measure if that makes no difference" in explained
    assert "Square.area changed (measures.py:" in explained
    shown = desk.temper("accept", "measure", "double", "--yes")
    assert "Square.area changed (measures.py:" in shown
    assert "double: nothing that it depends on has changed" in shown
    assert "accepted: 2 artifacts valid again" in shown, "a line is no square"
    assert desk.run() == 0
    assert "measure: nothing that it" in desk.temper("accept", "measure", "--yes")


def test_an_edit_of_accepted_code_counts_like_any_other(desk: Desk) -> None:
    desk.edit(*ROUND)
    desk.temper("accept", "measure", "--yes")
    desk.edit("ndigits=2", "ndigits=1 + 1")
    assert "rounded changed (measures.py:" in desk.temper("accept", "measure", "--yes")
    assert desk.run() == 1, "double was not accepted"
    desk.edit("ndigits=1 + 1", "ndigits=0")
    assert desk.run() == 4


def test_code_that_an_accepted_edit_calls_counts(desk: Desk) -> None:
    desk.edit("def rounded(value):", "def digits():\n    return 2\n\ndef rounded(value):")
    desk.edit("round(value, 2)", "round(value, digits())")
    desk.temper("accept", "measure", "double", "--yes")
    assert desk.run() == 0
    desk.edit("    return 2\n", "    return 3\n")
    assert desk.run() == 4


def test_what_is_of_older_code_stays_invalid(desk: Desk) -> None:
    whole = desk.script.read_text()
    desk.edit("round(value, 2)", "round(value, 3)")
    desk.edit(", measure(Line(), journal)]", "]")
    assert desk.run() == 3
    desk.script.write_text(whole.replace("round(value, 2)", "round(value, ndigits=3)"))
    shown = desk.temper("accept", "measure", "double", "--yes")
    assert "1 artifact of measure differ" in shown
    assert "accepted: 3 artifacts valid again" in shown
    key = key_of(desk, "Line")
    assert desk.run() == 1
    desk.script.write_text(whole)
    assert desk.run() == 0, "what was made first"
    assert f"measure@{key[:8]}" not in desk.temper("accept", "measure")


def test_the_code_of_one_artifact_is_accepted_by_its_key(desk: Desk) -> None:
    desk.edit(*ROUND)
    key = key_of(desk, "Line")
    assert "1 artifact valid again" in desk.temper("accept", "measure", "--of", key[:9], "--yes")
    assert desk.run() == 3


def test_code_is_accepted_on_a_terminal_or_with_yes(desk: Desk) -> None:
    desk.edit(*ROUND)
    assert "add --yes" in desk.temper("accept", "double")
    assert desk.run() == 4


def test_one_command_accepts_every_step_with_the_same_change(desk: Desk) -> None:
    desk.edit(*ROUND)
    shown = desk.temper("accept", "double", "--all-with-same-change", "--yes")
    assert "rounded changed (measures.py:" in shown
    assert "accepted: 4 artifacts valid again" in shown
    assert desk.run() == 0


def test_steps_with_the_same_change_are_named_and_left_alone_unless_asked_for(desk: Desk) -> None:
    desk.edit(*ROUND)
    shown = desk.temper("accept", "double", "--yes")
    assert "measure: the same change, and no other" in shown
    assert "--all-with-same-change accepts the change in these steps, too" in shown
    assert desk.run() == 3


def test_a_step_that_differs_in_more_is_not_offered(desk: Desk) -> None:
    desk.edit(*ROUND)
    desk.edit(*SQUARE)
    shown = desk.temper("accept", "double", "--all-with-same-change", "--yes")
    assert "accepted: 2 artifacts valid again" in shown, "its own and the line's"
    assert desk.run() == 2


def test_what_was_accepted_can_be_taken_back(desk: Desk) -> None:
    desk.edit(*ROUND)
    desk.temper("accept", "double", "measure", "--yes")
    shown = desk.temper("accept", "--undo", "measure", "--yes")
    assert "rounded changed (measures.py:" in shown
    assert "taken back: 2 acceptances" in shown, "of squares and of lines"
    assert "nothing was accepted of measure" in desk.temper("accept", "--undo", "measure", "--yes")
    assert "add --yes" in desk.temper("accept", "--undo", "double")
    assert desk.run() == 3


def test_code_is_accepted_after_its_classes_moved_to_another_module(desk: Desk) -> None:
    imports, classes, steps, main = cut(MEASURES)
    (desk.folder / "project" / "shapes.py").write_text(imports + classes)
    desk.script.write_text(imports + "from shapes import Line, Square, Unit\n" + steps + main)
    shown = desk.temper("accept", "measure", "double", "--yes")
    assert "measures:Square is shapes:Square now" in shown
    assert desk.run() == 0


def test_code_is_accepted_after_its_step_was_renamed(desk: Desk) -> None:
    text = desk.script.read_text().replace("double(", "twice(")
    desk.script.write_text(text.replace("@step(added", "@step(was=('double',), added"))
    shown = desk.temper("accept", "--neutral", "--yes")
    assert "measures:double is measures:twice now" in shown
    assert desk.run() == 0
