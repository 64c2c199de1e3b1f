"""The releases of the shipped steps."""

import ast
import json

from places import REPOSITORY

RELEASES = REPOSITORY / "steps" / "releases.json"


def test_every_shipped_step_has_a_release_and_nothing_else_has() -> None:
    folder, releases = RELEASES.parent, json.loads(RELEASES.read_text("utf-8"))
    made = {
        ".".join(file.relative_to(folder).with_suffix("").parts)
        for file in folder.rglob("*.py")
        if any(map(_is_step, ast.parse(file.read_text("utf-8")).body))
    }
    assert releases.keys() == made, "steps/releases.json must name each module with a step"
    assert all(number.isdecimal() for number in releases.values())


def _is_step(node: ast.stmt) -> bool:
    made = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    names = [ast.unparse(d.func if isinstance(d, ast.Call) else d) for d in made]
    return "step" in [name.rpartition(".")[2] for name in names]
