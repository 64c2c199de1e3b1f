"""What the traces of a checkout get wrong, as the smallest projects that show it.

Run it by hand::

    .venv/bin/python tests/fuzz/report.py [--root CHECKOUT] [NAME ...]

A name is that of an idiom or of a topic; without one, all are tried. ``--judge`` notes which topics
the interpreter has judged, so that the tests need not ask it again (see :func:`is_judged`).
"""

import argparse
import difflib
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from idiom import FOLDER, Edit, Idiom, idioms
from laboratory import Files, Laboratory, Verdict

JUDGED = FOLDER / "judged.json"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default=str(Path(__file__).parents[2]))
    parser.add_argument("--brief", action="store_true", help="one line each")
    parser.add_argument("--judge", action="store_true", help=f"write {JUDGED.name} anew")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    with Laboratory(Path(options.root)) as laboratory:
        for idiom in idioms():
            if options.names and not {idiom.topic, idiom.name} & set(options.names):
                continue
            for edit in idiom.edits:
                counts["edits"] += 1
                if problem := fault(laboratory, idiom, edit, judged=False):
                    counts[problem] += 1
                    print(f"{problem}: {idiom.topic}/{idiom.name}: {edit.text}", flush=True)
                    if not options.brief:
                        print("\n".join(details(laboratory, idiom, edit)), flush=True)
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    if options.judge:
        assert not options.names, "all topics are judged at once"
        assert not any(problem.startswith("corpus") for problem in counts), "see above"
        topics = sorted({idiom.topic for idiom in idioms()})
        JUDGED.write_text(json.dumps({topic: _digest(topic) for topic in topics}, indent=1) + "\n")


@cache
def is_judged(topic: str) -> bool:
    """Whether the interpreter has confirmed what this text of a topic says of each edit: that it
    changes the result, or that it does not. Traces are no part of that."""
    known = json.loads(JUDGED.read_text("utf-8")) if JUDGED.exists() else {}
    return known.get(topic) == _digest(topic)


def _digest(topic: str) -> str:
    text = f"{sys.version_info[:2]} {(FOLDER / topic).with_suffix('.txt').read_text('utf-8')}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def fault(laboratory: Laboratory, idiom: Idiom, edit: Edit, judged: bool) -> str:
    """What is wrong with an edit or with what Temper makes of it; empty if nothing is.

    Args:
        judged: whether to believe what the corpus says of the edit.
    """
    verdict = laboratory.compare(idiom.files, edit.apply(idiom.files))
    if not judged and (found := _fault_of_corpus(edit, verdict)):
        return found
    if verdict.is_crash:
        return "crash"
    if verdict.hit and edit.class_ == "!":
        return "FALSE HIT"
    return "needless rerun" if not verdict.hit and edit.class_ == "=" else ""


def _fault_of_corpus(edit: Edit, verdict: Verdict) -> str:
    if verdict.laboratory.result(verdict.before) is None:
        return f"corpus: the project raises {verdict.laboratory.plainly(verdict.before)}"
    if edit.class_ != "=" and not verdict.changed:
        return "corpus: the edit has no effect"
    if edit.class_ == "=" and verdict.changed:
        return "corpus: the edit has an effect"
    return ""


def details(laboratory: Laboratory, idiom: Idiom, edit: Edit) -> Iterator[str]:
    verdict = laboratory.compare(idiom.files, edit.apply(idiom.files))
    for name, text in idiom.files.items():
        yield f"    --- {name}"
        yield from (f"    {line}" for line in text.rstrip().split("\n"))
    yield from difference(verdict.before, verdict.after)
    yield str(verdict)


def difference(before: Files, after: Files) -> Iterator[str]:
    for name in sorted({*before, *after}):
        old, new = before.get(name, "").split("\n"), after.get(name, "").split("\n")
        yield from (
            f"    {line}" for line in difflib.unified_diff(old, new, name, name, "", "", 1, "")
        )


if __name__ == "__main__":
    main()
