"""What the keys of a checkout get wrong, as the smallest projects that show it.

Run it by hand::

    .venv/bin/python tests/fuzz/report.py [--root CHECKOUT] [NAME ...]

A name is that of an idiom or of a topic; without one, all are tried.
"""

import argparse
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from idiom import Edit, Idiom, idioms
from laboratory import Files, Laboratory, Verdict

FALSE_HIT = "FALSE HIT"
CHANGES = ("!", "-")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default=str(Path(__file__).parents[2]))
    parser.add_argument("--brief", action="store_true", help="one line each")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    counts: dict[str, int] = {}
    with Laboratory(Path(options.root)) as laboratory:
        for idiom in idioms():
            if options.names and not {idiom.topic, idiom.name} & set(options.names):
                continue
            for edit in idiom.edits:
                counts["edits"] = counts.get("edits", 0) + 1
                if problem := fault(laboratory, idiom, edit):
                    counts[problem] = counts.get(problem, 0) + 1
                    print(f"{problem}: {idiom.topic}/{idiom.name}: {edit.text}")
                    if not options.brief:
                        print("\n".join(details(laboratory, idiom, edit)))
    print(", ".join(f"{count} {name}" for name, count in counts.items()))


def fault(laboratory: Laboratory, idiom: Idiom, edit: Edit) -> str:
    """What is wrong with an edit or with what Temper makes of it; empty if nothing is."""
    after = edit.apply(idiom.files)
    found = _fault(edit, laboratory.compare(idiom.files, after))
    if found == FALSE_HIT and laboratory.observed_changes(idiom.files, after):
        return ""
    return found


def _fault(edit: Edit, verdict: Verdict) -> str:
    if verdict.before.result is None:
        return f"corpus: the project raises {verdict.before.raised}"
    if edit.class_ in CHANGES and not verdict.changed:
        return "corpus: the edit has no effect"
    if edit.class_ in "=~" and not verdict.unchanged:
        return "corpus: the edit has an effect"
    if verdict.before.failed or (verdict.after.failed and verdict.after.result is not None):
        return "crash"
    if verdict.false_hit and edit.class_ == "!":
        return FALSE_HIT
    if edit.class_ == "=" and not verdict.hit:
        return "needless rerun"
    return ""


def details(laboratory: Laboratory, idiom: Idiom, edit: Edit) -> Iterator[str]:
    verdict = laboratory.compare(idiom.files, edit.apply(idiom.files))
    for name, text in idiom.files.items():
        yield f"    --- {name}"
        yield from (f"    {line}" for line in text.rstrip().split("\n"))
    yield from difference(idiom.files, edit.apply(idiom.files))
    yield f"    result {verdict.before.result} -> {verdict.after.result or verdict.after.raised}"
    yield f"    units that differ: {verdict.units}"
    for observation in (verdict.before, verdict.after):
        yield from (f"    {line}" for line in observation.trouble.split("\n") if line)


def difference(before: Files, after: Files) -> Iterator[str]:
    for name in sorted({*before, *after}):
        old, new = before.get(name, "").split("\n"), after.get(name, "").split("\n")
        yield from (
            f"    {line}" for line in difflib.unified_diff(old, new, name, name, "", "", 1, "")
        )


if __name__ == "__main__":
    main()
