"""The page and its picture, from the outcomes in ``results.json``."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.what_changed.cases import CASES
from benchmarks.what_changed.contenders import CONTENDERS

WORDS = {"right": "·", "needless": "needless", "stale": "**stale**", "failed": "failed"}
COLOURS = {"right": "#2e7d32", "needless": "#f9a825", "stale": "#c62828", "failed": "#757575"}
BEGIN, END = "<!-- results -->\n", "<!-- end -->\n"

Outcomes = Sequence[Mapping[str, Any]]


def verdict(outcome: Mapping[str, Any]) -> str:
    if outcome["failed"]:
        return "failed"
    if outcome["is_stale"]:
        return "stale"
    return "needless" if outcome["needless"] else "right"


def write_page(folder: Path, results: Mapping[str, Mapping[str, Any]]) -> None:
    """Write what was measured between the marks of README.md, and ``what_changed.svg``."""
    found = {name: each["outcomes"] for name, each in results.items()}
    versions = {name: each["version"] for name, each in results.items()}
    text = (folder / "README.md").read_text()
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    picture = "![how many edits each tool got right](what_changed.svg)\n"
    tables = "\n".join([picture, _summary(found, versions), _cases(found)])
    (folder / "README.md").write_text(f"{before}{BEGIN}{tables}{END}{after}")
    (folder / "what_changed.svg").write_text(_picture(found))


def _summary(found: Mapping[str, Outcomes], versions: Mapping[str, str]) -> str:
    lines = [
        "| | version | stale | needless | right | steps run | used how |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    notes = {contender.name: contender.note for contender in CONTENDERS}
    for name, outcomes in found.items():
        count = [
            sum(verdict(o) == word for o in outcomes) for word in ("stale", "needless", "right")
        ]
        ran = sum(len(o["ran"]) for o in outcomes)
        cells = [name, versions[name] or "this one", *count, ran, notes[name]]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    told = f"{len(CASES)} edits. *Steps run* counts those of all edits.\n"
    return "\n".join([told, *lines, ""])


def _cases(found: Mapping[str, Outcomes]) -> str:
    heads = list(found)
    lines = [f"| edit | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    by_name = {name: {o["case"]: o for o in outcomes} for name, outcomes in found.items()}
    for case in CASES:
        cells = [WORDS[verdict(by_name[name][case.name])] for name in heads]
        link = f"[{case.name}]({case.thread})" if case.thread else case.name
        lines.append(f"| {link} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _picture(found: Mapping[str, Outcomes]) -> str:
    """A bar for each tool: how many edits it got right, needless and stale."""
    height, left, width = 26, 150, 420
    parts = []
    for row, (name, outcomes) in enumerate(found.items()):
        y, x = 34 + row * height, float(left)
        parts.append(f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>')
        for word, colour in COLOURS.items():
            count = sum(verdict(outcome) == word for outcome in outcomes)
            wide = width * count / len(outcomes)
            if count:
                parts.append(
                    f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="19" fill="{colour}"/>'
                    f'<text x="{x + wide / 2:.1f}" y="{y + 14}" text-anchor="middle" '
                    f'fill="#fff">{count}</text>'
                )
            x += wide
    legend = "".join(
        f'<rect x="{left + 110 * i}" y="8" width="12" height="12" fill="{colour}"/>'
        f'<text x="{left + 110 * i + 17}" y="19">{word}</text>'
        for i, (word, colour) in enumerate(COLOURS.items())
    )
    total = 42 + len(found) * height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 12} {total}" '
        'font-family="sans-serif" font-size="13">'
        f'<rect width="100%" height="100%" fill="#fff"/>{legend}{"".join(parts)}</svg>\n'
    )
