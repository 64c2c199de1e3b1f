"""Edits of the experiment, each made from the situation in a public thread or from daily work."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """An edit between two runs of the experiment.

    Attributes:
        edit: changes the project in a folder.
        thread: a public thread in which somebody met the situation; empty for daily work.
        back: whether a third run follows on the project as it was; it is the one that counts.
        may_run: steps that may run although their output stays, since what they read changed.
        variables: environment variables of the run that counts.
    """

    name: str
    edit: Callable[[Path], None]
    thread: str = ""
    back: bool = False
    may_run: frozenset[str] = frozenset()
    variables: tuple[tuple[str, str], ...] = ()


def _text(file: str, *changes: tuple[str, str]) -> Callable[[Path], None]:
    def edit(project: Path) -> None:
        path = project / file
        text = path.read_text()
        for old, new in changes:
            assert text.count(old) == 1, (file, old)
            text = text.replace(old, new)
        path.write_text(text)

    return edit


def _settings(**changes: object) -> Callable[[Path], None]:
    def edit(project: Path) -> None:
        path = project / "settings.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes, indent=2) + "\n")

    return edit


def _both(*edits: Callable[[Path], None]) -> Callable[[Path], None]:
    def edit(project: Path) -> None:
        for each in edits:
            each(project)

    return edit


def _touch(*files: str) -> Callable[[Path], None]:
    def edit(project: Path) -> None:
        for file in files:
            os.utime(project / file)

    return edit


def _keeping_times(file: str, old: str, new: str) -> Callable[[Path], None]:
    """Another content of the same size, with the times of the old one."""

    def edit(project: Path) -> None:
        before = (project / file).stat()
        _text(file, (old, new))(project)
        os.utime(project / file, ns=(before.st_atime_ns, before.st_mtime_ns))

    return edit


def _copy(old: str, new: str) -> Callable[[Path], None]:
    def edit(project: Path) -> None:
        (project / new).write_bytes((project / old).read_bytes())

    return edit


def _move_folded(project: Path) -> None:
    spelling, text = project / "lab/spelling.py", project / "lab/text.py"
    body = spelling.read_text().partition("\n\n")[2].lstrip()
    spelling.unlink()
    text.write_text(text.read_text().replace("from lab.spelling import folded\n", "\n" + body))


def _append_row(project: Path) -> None:
    with open(project / "data/rows.jsonl", "a") as rows:
        rows.write('{"text": "One more row"}\n')


def _edit_first_row(project: Path) -> None:
    path = project / "data/rows.jsonl"
    path.write_text(re.sub(r'": "', '": "Token ', path.read_text(), count=1))


def _rewrite_settings(project: Path) -> None:
    path = project / "settings.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=4, sort_keys=True))


STEPS, TEXT = "lab/steps.py", "lab/text.py"
JOBLIB = "https://github.com/joblib/joblib/issues"
AXOLOTL = "https://github.com/axolotl-ai-cloud/axolotl/issues"
SNAKEMAKE = "https://github.com/snakemake/snakemake/issues"
DATASETS = "https://github.com/huggingface/datasets"

CASES = [
    Case("nothing changed", lambda project: None),
    # settings
    Case("another learning rate", _settings(rate=0.04)),
    Case("one more row of the limit", _settings(limit=25)),
    Case("another threshold of the metric", _settings(threshold=0.25)),
    Case("another metric, imported by name", _settings(metric="far")),
    Case("another optimiser, chosen by name", _settings(optimiser="plain")),
    Case("the output folder renamed", _settings(output="results-2"), f"{AXOLOTL}/3538"),
    Case(
        "settings written again, in another order",
        _rewrite_settings,
        "https://github.com/EngreitzLab/scE2G/pull/112",
    ),
    Case("a learning rate tried and put back", _settings(rate=0.04), back=True),
    # data
    Case("a row appended behind the limit", _append_row, may_run=frozenset({"load"})),
    Case("the first row edited", _edit_first_row),
    Case(
        "rows edited, with the same size and times",
        _keeping_times("data/rows.jsonl", "Rate reward", "Rate reword"),
    ),
    Case("rows touched", _touch("data/rows.jsonl"), f"{SNAKEMAKE}/2011"),
    Case(
        "rows renamed",
        _both(_copy("data/rows.jsonl", "data/pairs.jsonl"), _settings(rows="data/pairs.jsonl")),
    ),
    Case(
        "another tokenizer under the same path",
        _text("data/vocabulary.txt", ("model\ndata\n", "data\nmodel\n")),
        f"{AXOLOTL}/1265",
    ),
    Case(
        "another tokenizer under another path",
        _both(
            _copy("data/vocabulary.txt", "data/other.txt"),
            _text("data/other.txt", ("loss\n", "")),
            _settings(vocabulary="data/other.txt"),
        ),
        f"{AXOLOTL}/885",
    ),
    Case(
        "a file that a helper opens",
        _text("data/stopwords.txt", ("of", "model")),
        "https://github.com/dhruvdcoder/xlm-core/issues/50",
    ),
    Case(
        "all files copied anew",
        _touch("data/rows.jsonl", STEPS, TEXT),
        "https://github.com/snakemake/snakemake/pull/3707",
    ),
    # code that counts
    Case(
        "the body of a step",
        _text(STEPS, ("[:limit]", "[1:limit]")),
        "https://github.com/pipefunc/pipefunc/issues/964",
    ),
    Case(
        "the body of a helper in another module",
        _text(TEXT, ("[a-z]+", "[a-m]+")),
        f"{JOBLIB}/1287",
    ),
    Case("a helper of that helper", _text("lab/spelling.py", (".lower()", ".upper()"))),
    Case(
        "a constant of a module",
        _text("lab/optimise.py", ("MOMENTUM = 0.9", "MOMENTUM = 0.8")),
        "https://github.com/insitro/redun/issues/99",
    ),
    Case("a default of a helper", _text(TEXT, ("least: int = 2", "least: int = 5"))),
    Case("an attribute of a class", _text("lab/optimise.py", ("decay = 0.0", "decay = 0.01"))),
    Case("a method of a class", _text("lab/optimise.py", ("+ gradient", "+ 2 * gradient"))),
    Case("a table of a helper", _text("lab/spelling.py", ('"é": "e"', '"é": "a"'))),
    Case(
        "the function behind a map",
        _text(STEPS, ("for word in words_of(text)", "for word in words_of(text)[1:]")),
        f"{DATASETS}/issues/3297",
    ),
    Case("the metric's module", _text("lab/metrics/close.py", ("+ sum(errors)", "- sum(errors)"))),
    Case("an environment variable", lambda project: None, variables=(("LAB_CASE", "upper"),)),
    # code that does not count
    Case(
        "a comment in a step",
        _text(STEPS, ('    journal.ran("train")\n', '    # notes it\n    journal.ran("train")\n')),
        f"{SNAKEMAKE}/1694",
    ),
    Case("a comment in a helper", _text(TEXT, ("    stop =", "    # left out\n    stop ="))),
    Case(
        "lines above a step",
        _text(STEPS, ("\n\ndef load", "\n\n# Steps begin here.\n\n\ndef load")),
        f"{DATASETS}/pull/1779",
    ),
    Case(
        "a docstring",
        _text(STEPS, ("by least squares to the length of a row", "by least squares")),
    ),
    Case(
        "code formatted anew",
        _text(STEPS, ("    steps = {}\n", "    steps = (\n        {}\n    )\n")),
    ),
    Case("a function that no step calls", _text(TEXT, ("text.upper()", "text.title()"))),
    Case(
        "a new function beside the helpers",
        _text(
            TEXT, ("def shown", "def first(text: str) -> str:\n    return text[:1]\n\n\ndef shown")
        ),
        f"{JOBLIB}/324",
    ),
    Case(
        "a new constant that nobody reads", _text(TEXT, ("LONGEST = 12", "LONGEST = 12\nMOST = 9"))
    ),
    Case(
        "a metric that is not chosen",
        _text("lab/metrics/far.py", ("1 - close", "2 - close")),
    ),
    Case("a helper moved to another module", _move_folded),
    Case(
        "a local variable renamed",
        _text(
            TEXT, ("found = PATTERN", "words = PATTERN"), ("for word in found", "for word in words")
        ),
    ),
    Case("an edit undone", _text(TEXT, ("[a-z]+", "[a-m]+")), back=True),
]
