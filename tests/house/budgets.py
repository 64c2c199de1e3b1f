"""Counts the lines of each package and compares them with ``budgets.toml``.

    make size                  lines, budget, and what is over
    make size ARGS=--write     budgets fall to today's lines

A budget only falls. A raise is an edit of the table by hand, its reason in a comment.
``--write`` keeps comments, adds packages that are new and removes those that are gone.
"""

import re
import sys
import tomllib
from collections import Counter
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("budgets.toml")
_ENTRY = re.compile(r'"([^"]+)" = (\d+)(.*)')


def package_of(file: Path) -> str:
    """The line of the table that counts a file, by its path in the repository."""
    top = file.parts[0]
    if top in ("pipeline", "steps") and len(file.parts) > 2:
        return "/".join(file.parts[:2])
    return {"README.md": "docs", "experiments": "examples"}.get(top, top)


def counted() -> dict[str, int]:
    """Lines by package: of Python, comments and blank lines too, and of the pages of ``docs/``."""
    files = [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]
    for top in ("pipeline", "steps", "tests", "experiments", "examples"):
        files += (REPOSITORY / top).rglob("*.py")
    lines: Counter[str] = Counter()
    for file in files:
        lines[package_of(file.relative_to(REPOSITORY))] += file.read_bytes().count(b"\n")
    return dict(lines)


def budgets() -> dict[str, int]:
    return tomllib.loads(TABLE.read_text("utf-8"))


def rewritten(table: str, lines: dict[str, int]) -> str:
    """The table with these lines as budgets, except where they are more than a budget allows."""
    new, kept = dict(lines), []
    for line in table.splitlines():
        entry = _ENTRY.fullmatch(line)
        if not entry:
            kept.append(line)
        elif entry[1] in lines:
            kept.append(f'"{entry[1]}" = {min(int(entry[2]), new.pop(entry[1]))}{entry[3]}')
    return "\n".join([*kept, *(f'"{name}" = {count}' for name, count in sorted(new.items())), ""])


def main() -> None:
    lines = counted()
    if "--write" in sys.argv[1:]:
        TABLE.write_text(rewritten(TABLE.read_text("utf-8"), lines), "utf-8")
    held = budgets()
    for name in sorted({*held, *lines}):
        count, budget = lines.get(name, 0), held.get(name, 0)
        over = f"  {count - budget} over its budget" if count > budget else ""
        print(f"{count:7,}  {budget:7,}  {name}{over}")
    for top in ("pipeline", "steps"):
        total = sum(n for name, n in lines.items() if name.split("/")[0] == top)
        print(f"{total:7,}           {top}, all of it")


if __name__ == "__main__":
    main()
