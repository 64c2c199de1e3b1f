"""Which code counts: edits of small modules, of which some functions ran."""

from collections.abc import Mapping

import pytest

from pipeline.trace.counted import Loaded, digests
from pipeline.trace.source_parts import read_source

STEPS = "import helper\nfrom helper import scale\ndef train():\n    return scale(helper.RATE)\n"
RAN = {"steps": {"train"}, "helper": {"scale"}}


def traced(
    sources: Mapping[str, str],
    ran: Mapping[str, set[str]] = RAN,
    packages: frozenset[str] = frozenset(),
    files: frozenset[str] = frozenset(),
) -> dict[str, str]:
    """The digests of what counts; ``files`` are modules that nobody has loaded."""
    loaded = {
        name: Loaded(
            read_source(source.encode()), name in packages, frozenset(ran.get(name, set()))
        )
        for name, source in sources.items()
    }
    return digests(loaded, lambda name: name in {*sources, *files})


def counts(before: str, after: str, steps: str = STEPS, ran: Mapping[str, set[str]] = RAN) -> bool:
    """Whether an edit of the module ``helper`` counts."""
    one, other = ({"steps": steps, "helper": text} for text in (before, after))
    return traced(one, ran) != traced(other, ran)


HELPER = """\
\"\"\"About it.\"\"\"
import math
RATE = 3
UNREAD = 4
TABLE = {"a": [1, 2]}
def scale(x: int, by: int = RATE) -> int:
    return x * by
def unused(x):
    return x + RATE
class Unused:
    limit = 3
    def go(self):
        return UNREAD
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("RATE = 3", "RATE = 4"),
        ("x * by", "by * x"),
        ("x: int, by", "x: float, by"),
        ("TABLE =", "print()\nTABLE ="),
        ("TABLE =", "from steps import train\nTABLE ="),
        ("TABLE =", "RATE = 5\nTABLE ="),
        ("TABLE =", "from math import *\nTABLE ="),
        ("TABLE =", "__all__ = []\nTABLE ="),
        ("TABLE =", "if __name__ != '__main__':\n    print()\nTABLE ="),
        ("TABLE =", "if __name__ == '__main__':\n    pass\nelse:\n    print()\nTABLE ="),
        ("TABLE =", "__name__ = '__main__'\nif __name__ == '__main__':\n    print()\nTABLE ="),
        ("TABLE =", "TABLE = math.sqrt(RATE)\n#"),
        ("TABLE =", "TABLE = RATE + 1\n#"),
        ("TABLE =", "TABLE = list(RATE)\n#"),
        ("TABLE =", "go = lambda x=print(): x\nTABLE ="),
        ("TABLE =", "RATE, OTHER = 1, 2\nTABLE ="),
        ("TABLE =", "ONE, OTHER = TABLE\nTABLE ="),
        ("def unused(x)", "@RATE.setter\ndef unused(x)"),
        ("def unused(x)", "def unused(x: RATE.kind)"),
        ("import math\n", "import math\nX = math.nan\nclass Y:\n    x = X\n"),
        ("class Unused:", "class Unused(Base):"),
        ("class Unused:", "class Unused(metaclass=type):"),
        ("    limit = 3", "    limit = print()"),
        ("def unused(x)", "@print\ndef unused(x)"),
        ("def unused(x)", "def unused(x=print())"),
        ("def unused(x)", "def scale(x)"),
        ("    return x * by", "    global UNREAD\n    return x * by"),
    ],
)
def test_what_ran_or_is_mentioned_counts(old: str, new: str) -> None:
    assert counts(HELPER, HELPER.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("UNREAD = 4", "UNREAD = 5"),
        ("TABLE =", "# a comment\nTABLE ="),
        ("TABLE =", "OTHER ="),
        ("TABLE =", "if __name__ == '__main__':\n    RATE = print(UNREAD)\nTABLE ="),
        ("TABLE =", "OTHER = RATE\nMORE = frozenset((2**20, list((1, 2))))\n#"),
        ("TABLE =", "MORE = 1\ndef more(): return MORE\nimport json\nTABLE ="),
        ("x + RATE", "x - RATE"),
        ("def unused(x)", "def other(x, y=1, *, z: 'int' = 2)"),
        ("def unused(x)", "import functools\n@functools.cache\ndef unused(x)"),
        ("    limit = 3", "    limit = 4\n    more: int = 5"),
        ("class Unused:", "class Unused(ValueError):"),
        (
            "class Unused:",
            "import enum\nclass Unused(enum.Enum):\n    A = enum.auto()\nclass Other:",
        ),
        (
            "class Unused:",
            "from pipeline import Artifact\nclass Made(Artifact):\n    parts = int\nclass Unused:",
        ),
        ("TABLE =", "ONE, OTHER = 1, (2, 3)\nTABLE ="),
        ("return UNREAD", "return TABLE"),
        ("About it.", "About that."),
    ],
)
def test_what_nothing_mentions_does_not_count(old: str, new: str) -> None:
    assert not counts(HELPER, HELPER.replace(old, new))


@pytest.mark.parametrize(
    "use",
    [
        "getattr(helper, 'UN' + 'READ')",
        "vars(helper)",
        "helper.__dict__",
        "[helper]",
        "exec('x')",
        "__import__('sys').modules",
        "import sys as s; s.modules",
        "import sys; getattr(sys, 'modules')",
        "vars(sys.modules['helper'])",
        "sys.modules.get('helper')",
        "helper.scale.__globals__",
        "helper.go(f'{1}UNREAD')",
    ],
)
def test_code_that_can_reach_any_name_reaches_all(use: str) -> None:
    steps = STEPS.replace("return scale", f"{use}\n    return scale")
    assert counts(HELPER, HELPER.replace("UNREAD = 4", "UNREAD = 5"), steps)


@pytest.mark.parametrize(
    "use", ["'torch' in sys.modules", "sys.modules.get('torch')", "vars(self)"]
)
def test_what_asks_for_one_thing_reaches_no_other(use: str) -> None:
    steps = STEPS.replace("return scale", f"{use}\n    return scale")
    assert not counts(HELPER, HELPER.replace("UNREAD = 4", "UNREAD = 5"), steps)


def test_code_objects_and_source_count_where_they_are_read() -> None:
    body = HELPER.replace("x + RATE", "x - RATE")
    comment = HELPER.replace("UNREAD = 4", "UNREAD = 4  # as measured")
    reads = STEPS.replace("return", "helper.unused.__code__\n    return")
    assert counts(HELPER, body, reads)
    assert not counts(HELPER, comment, reads)
    reads = STEPS.replace("return", "inspect.getsource(helper)\n    return")
    assert counts(HELPER, comment, reads)


def test_a_module_that_is_a_value_gives_the_modules_that_it_holds() -> None:
    steps = "import pkg\ndef train():\n    return getattr(getattr(pkg, 'co' + 'nf'), 'RA' + 'TE')\n"
    before = {"steps": steps, "pkg": "import pkg.conf\n", "pkg.conf": "RATE = 1\n"}
    assert traced(before) != traced({**before, "pkg.conf": "RATE = 2\n"})


def test_hints_that_act_count() -> None:
    before = "class T:\n    pass\ndef unused(x: T | None): ...\n"
    after = before.replace("T | None", "T | int")
    assert not counts(before, after)
    acting = "class Meta(type):\n    def __or__(cls, o): print(o)\n"
    assert counts(acting + before, acting + after)


def test_the_order_of_what_acts_and_what_is_mentioned_counts() -> None:
    """An import of a module of the project may change what a class reads."""
    adapter = "class Adapter:\n    scale = int\n"
    acts, steps = "import override\n", STEPS + "helper.Adapter\n"

    def traced_with(helper: str) -> dict[str, str]:
        return traced({"steps": steps, "helper": helper, "override": ""})

    assert traced_with(acts + adapter) != traced_with(adapter + acts)


def test_a_new_file_where_an_import_leads_counts() -> None:
    sources = {"pkg": "def load(): ...\n", "steps": "from pkg import load\nimport yaml\n"}
    packages = frozenset({"pkg"})
    before = traced(sources, {}, packages)
    assert traced(sources, {}, packages, frozenset({"pkg.load"})) != before
    assert traced(sources, {}, packages, frozenset({"yaml"})) != before
    assert traced(sources, {}, packages, frozenset({"other"})) == before
    sources = {"deep.inner": "", "steps": "import deep.inner\n"}
    assert traced(sources) != traced(sources, files=frozenset({"deep"})), "no package before"


SHARED = """\
RATE = 3
SEED = 7
def scale(x, by=1):
    return x
def clip(x, least=0):
    return x
"""
TAKES = "from helper import RATE, SEED, clip, scale\ndef train():\n    return scale(RATE)\n"


@pytest.mark.parametrize(
    ("old", "new", "steps", "does"),
    [
        ("SEED = 7", "SEED = 8", TAKES, False),
        ("least=0", "least=1", TAKES, False),
        ("RATE = 3", "RATE = 4", TAKES, True),
        ("by=1", "by=2", TAKES, True),
        ("SEED = 7\n", "", TAKES, True),  # the import fails now
        ("SEED = 7\n", "SEED = 7\nSEED = 8\n", TAKES, True),
        ("SEED = 7", "SEED = 8", TAKES.replace("SEED,", "SEED as RATED,"), False),
        ("SEED = 7", "SEED = 8", f"{TAKES.replace('SEED,', 'SEED as R,')}print(R)\n", True),
        ("SEED = 7", "SEED = 8", f"{TAKES}print(globals())\n", True),
        ("SEED = 7", "SEED = 8", f"import steps\nprint(steps)\n{TAKES}", True),
        ("SEED = 7", "SEED = 8", f"{TAKES}import sys\nvars(sys.modules['steps'])\n", True),
        ("SEED = 7", "SEED = 8", f"{TAKES}print(vars()['SE' + 'ED'])\n", True),
        ("SEED = 7", "SEED = 8", f"{TAKES}print(f'SEED')\n", True),
        ("SEED = 7", "SEED = 8", f"{TAKES}class Made:\n    from helper import SEED\n", True),
        ("SEED = 7", "SEED = 8", f"try:\n    {TAKES}".replace("\ndef", "\nexcept E: 0\ndef"), True),
    ],
)
def test_a_name_that_is_imported_and_not_read_does_not_count(
    old: str, new: str, steps: str, does: bool
) -> None:
    """Steps of one file take constants of one module; each step reads some of them."""
    assert old in SHARED
    assert counts(SHARED, SHARED.replace(old, new), steps) == does


def test_what_a_package_takes_from_its_module_counts_where_others_read_it_there() -> None:
    def digests_with(inner: str) -> dict[str, str]:
        steps = "import package\ndef train():\n    return package.RATE\n"
        made = {"package": "from package.inner import RATE, SEED\n", "package.inner": inner}
        return traced({**made, "steps": steps}, packages=frozenset({"package"}))

    before = digests_with("RATE = 3\nSEED = 7\n")
    assert digests_with("RATE = 3\nSEED = 8\n") == before != digests_with("RATE = 4\nSEED = 7\n")
