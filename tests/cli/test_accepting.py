"""``temper accept`` beyond one step: the same change elsewhere, moved code, taking back."""

from own_script import MEASURES, Desk

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


def test_one_command_accepts_every_step_with_the_same_change(desk: Desk) -> None:
    desk.edit(*ROUND)
    shown = desk.temper("accept", "double", "--all-with-same-change", "--yes")
    assert "measures:rounded changed" in shown
    assert "accepted: 4 artifacts valid again" in shown
    assert desk.run() == 0


def test_steps_with_the_same_change_are_named_and_left_alone_unless_asked_for(desk: Desk) -> None:
    desk.edit(*ROUND)
    shown = desk.temper("accept", "double", "--yes")
    assert "the code of measure has the same change and no other" in shown
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
    assert "measures:rounded changed" in shown
    assert "taken back: 2 acceptances" in shown, "of squares and of lines"
    assert "nothing was accepted of measure" in desk.temper("accept", "--undo", "measure", "--yes")
    assert "add --yes" in desk.temper("accept", "--undo", "double")
    assert desk.run() == 3


def test_code_is_accepted_after_its_classes_moved_to_another_module(desk: Desk) -> None:
    imports, classes, steps, main = cut(MEASURES.replace(*SQUARE))
    (desk.folder / "project" / "shapes.py").write_text(imports + classes)
    desk.script.write_text(imports + "from shapes import *\n" + steps + main)
    shown = desk.temper("accept", "measure", "--yes")
    assert "Square changed" in shown
    assert "Unit added" not in shown, "it has only moved"
    assert desk.run() <= 1, "of double, nobody said anything"


def test_code_is_accepted_after_its_step_moved_to_another_module(desk: Desk) -> None:
    imports, classes, steps, main = cut(MEASURES.replace(*ROUND))
    (desk.folder / "project" / "work.py").write_text(imports + classes + steps)
    desk.script.write_text(imports + "from work import *\n" + main)
    shown = desk.temper("accept", "measure", "double", "--yes")
    assert "accepted: 4 artifacts valid again" in shown
    assert desk.run() == 0


def test_a_step_that_cannot_be_found_is_said_with_where_it_was_looked_for(desk: Desk) -> None:
    assert desk.run() == 0, "so that this is where it ran last"
    desk.script.rename(desk.folder / "project" / "lengths.py")
    said = desk.temper("accept", "measure", "--yes")
    assert "measures:measure cannot be imported" in said
    assert "the newest run's script imports no other measure" in said
