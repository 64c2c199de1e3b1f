"""A change of names, documentation or messages is named by the plan, and one command keeps it."""

from own_script import Desk

HELPERS = '"""Helpers."""\ndef cut(value):\n    "Cut."\n    return round(value, 2)\n'


def test_a_rename_and_a_move_are_kept_by_one_command(desk: Desk) -> None:
    text = desk.script.read_text()
    rounded = "def rounded(value):\n    return round(value, 2)\n"
    assert rounded in text
    (desk.folder / "project" / "helpers.py").write_text(HELPERS)
    moved = text.replace(rounded, "").replace("rounded(", "cut(")
    desk.script.write_text(f"from helpers import cut\n{moved}")
    shown = desk.temper("accept", "--neutral", "--yes")
    assert "accepted: 4 artifacts valid again" in shown
    assert "measure changed (measures.py:" in shown
    assert desk.run() == 0


def test_another_computation_does_not_look_neutral(desk: Desk) -> None:
    desk.edit("round(value, 2)", "round(value, 3)")
    assert "no step looks as if" in desk.temper("accept", "--neutral", "--yes")
    assert desk.run() == 4
