"""Programs whose tests have the forms of common data sets, and programs that only seem to pass."""

import json

import pytest

from steps.checking.code import Code
from steps.checking.verdicts import Answered, Verdict

GOOD = "```python\ndef add(a, b):\n    return a + b\n```"
BAD = GOOD.replace("+", "-")
CHECK = "def check(candidate):\n    assert candidate(1, 2) == 3\n"
CASE = """import unittest
class TestCases(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(1, 2), 3)
"""
FUNCTION = "def test_add():\n    assert add(1, 2) == 3\n"
PYTEST = f"from __future__ import annotations\nimport pytest\n{FUNCTION}"
ASSERT = "assert add(1, 2) == 3"
PROMPT = "def helper(a):\n    ...\ndef add(a, b):\n    '''The sum.'''"


def verdict(text: str, tests: str, prompt: str = "") -> str:
    asked = [{"role": "user", "content": prompt}] if prompt else []
    return Code(seconds=60, allow_network=True).check(Answered(text, tests, asked)).verdict.value


@pytest.mark.parametrize(
    "tests",
    [
        ASSERT,
        CHECK,
        f"{CHECK}check(add)",
        json.dumps({"test": CHECK, "entry_point": "add"}),
        CASE,
        f"{CASE}if __name__ == '__main__':\n    unittest.main()\n",
        f"{CASE}import sys\nsys.exit(unittest.main())\n",
        f"{CASE}unittest.TextTestRunner().run(unittest.makeSuite(TestCases))\n",
        FUNCTION,
        f"async {FUNCTION}",
        f"from solution import add\n{FUNCTION}",
        f"{FUNCTION}if __name__ == '__main__':\n    test_add()\n",
        "def test_all(f):\n    assert f(1, 2) == 3\ntest_all(add)\n",
        PYTEST,
        "import pytest\n@pytest.mark.parametrize('c', [3])\ndef test_add(c):\n"
        "    assert add(1, 2) == c\n",
        "import pytest\n@pytest.fixture\ndef two():\n    return 2\nasync def test_add(two):\n"
        "    assert add(1, two) == 3\n",
        "class TestAdd:\n    def test_add(self):\n        assert add(1, 2) == 3\n",
        ">>> add(1, 2)\n3\n",
        "if add(1, 2) != 3:\n    raise ValueError('no')\n",
        f"try:\n    {ASSERT}\nexcept AssertionError:\n    print('no')",
        f"{FUNCTION}try:\n    test_add()\nexcept Exception:\n    pass",
        f"import contextlib\nwith contextlib.suppress(AssertionError):\n    {ASSERT}",
        "try:\n    if add(1, 2) != 3:\n        raise ValueError\nexcept Exception:\n    pass",
        f"import pytest\ndef test_add():\n    try:\n        {ASSERT}\n    except:\n        pass",
        f"try:\n    assert add(1, 2) == 4\nexcept AssertionError:\n    {ASSERT}",
        f"try:\n    assert add('a', 1) == 0\nexcept TypeError:\n    pass\n{ASSERT}",
        f"import pytest\n{FUNCTION}    with pytest.raises(AssertionError):\n        assert not add",
        "if add(1, 2) != 3:\n    import sys\n    sys.exit(1)",
        "match add(1, 2):\n    case 3:\n        pass\n    case _:\n        assert False",
        "def check(candidate):\n    return candidate(1, 2) == 3\n",
        "def is_3():\n    if add(1, 2) != 3:\n        raise ValueError\n"
        "try:\n    is_3()\nexcept ValueError:\n    print('no')",
        f"try:\n    two = add(2)\nexcept Exception:\n    two = 0\n{ASSERT}",
        f"{CASE}    @unittest.expectedFailure\n    def test_no(self):\n"
        "        self.assertEqual(add(1, 2), 4)\n",
    ],
)
def test_tests_run_by_what_they_are(tests: str) -> None:
    """Until now any program passed tests that only define."""
    programs = (GOOD, BAD, "```python\npass\n```")
    assert [verdict(text, tests) for text in programs] == ["right", "wrong", "wrong"]


@pytest.mark.parametrize(
    "tests",
    [
        "print(add(1, 2))",
        f"def run():\n    {ASSERT}\n",
        "for a in []:\n    assert add(a, a) == 0\n",
        "assert True",
        "assert (add(1, 2) == 4, 'of a sum')",
        "pass",
        "def check(candidate):\n    pass\n",
        "import no_such_module\nassert no_such_module.same(add(1, 2), 3)\n",
        CASE.replace("    def", "    @unittest.skip('later')\n    def"),
        f"import pytest\n@pytest.mark.skip\n{FUNCTION}",
    ],
)
def test_tests_that_assert_nothing_give_no_verdict(tests: str) -> None:
    judgement = Code(seconds=60, allow_network=True).check(Answered(GOOD, tests))
    assert judgement.verdict is Verdict.none
    assert "the row's tests" in judgement.reason


OF_THREE = "def add(a, b):\n    if a == 3: raise ValueError\n    return a + b"
"""It fails for 3, where a test catches that before its assertion."""
NO_3 = f"{ASSERT}\ndef of_3():\n    three = add(3, 4)\n    assert three == 7\n"


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        *[
            (OF_THREE, f"{NO_3}{caught}")
            for caught in (
                "try:\n    of_3()\nexcept Exception as error:\n    print(error)",
                "import contextlib\nwith contextlib.suppress(Exception):\n    of_3()",
                "import threading\nrun = threading.Thread(target=of_3)\nrun.start()\nrun.join()",
                "import pytest\ndef test_3():\n    try:\n        of_3()\n    except:\n        pass",
            )
        ],
        (GOOD, "for c in (4, 3):\n    try:\n        assert add(1, 2) == c\n        break\n"
               "    except AssertionError:\n        continue"),
        (BAD, f"Failed = AssertionError\ntry:\n    {ASSERT}\nexcept Failed:\n    print('no')"),
        (GOOD, "def holds(c):\n    try:\n        assert add(1, 2) == c\n        return True\n"
               "    except Exception:\n        return False\nassert holds(4) or holds(3)"),
    ],
)  # fmt: skip
def test_errors_that_tests_catch_among_assertions_that_hold_give_no_verdict(
    program: str, tests: str
) -> None:
    assert verdict(program, tests) == "none"


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        ("import sys\ndef add(a, b): sys.exit(0)", CASE),
        ("import sys\ndef add(a, b): sys.exit(0)", CHECK),
        ("import sys\ndef add(a, b): sys.exit(0)", FUNCTION),
        ("import sys\ndef add(a, b): sys.exit(0)", PYTEST),
        ("import os\nos._exit(0)", CASE),
        ("import unittest\ndef add(a, b): raise unittest.SkipTest('x')", CASE),
        ("import pytest\ndef add(a, b): pytest.skip('x')", PYTEST),
        ("import unittest\nunittest.TestCase.assertEqual = print\ndef add(a, b): 0", CASE),
        ("import unittest\nunittest.TestCase.run = print\ndef add(a, b): 0", CASE),
        ("import builtins\nbuiltins.all = bool\ndef add(a, b): 0", "assert all([add(1, 2) == 3])"),
        ("def check(candidate): pass\ndef add(a, b): 0", CHECK),
        ("def add(a, b): 0\ndef test_own(): assert True", PYTEST),
    ],
)
def test_a_program_that_avoids_or_changes_its_tests_is_wrong(program: str, tests: str) -> None:
    assert verdict(program, tests, PROMPT) == "wrong"


@pytest.mark.parametrize(
    ("text", "tests", "expected"),
    [
        (f"{GOOD}\nUse it:\n```python\nprint(add(1, 2))\n```", ASSERT, "right"),
        (f"{GOOD}\nWrong use:\n```python\nadd(1)\n```", ASSERT, "right"),
        (f"{BAD}\nUse it:\n```python\nprint(add(1, 2))\n```", ASSERT, "wrong"),
        (f"{GOOD}\n```python\n>>> add(1, 2)\n3\n```", ASSERT, "right"),
        (f"{BAD}\nBetter:\n{GOOD}", ASSERT, "right"),
        (f"{GOOD}\nBetter:\n{BAD}", ASSERT, "wrong"),
        (GOOD.removeprefix("```python\n"), ASSERT, "right"),
        (GOOD.removesuffix("```"), ASSERT, "right"),
        (f"{GOOD}\n```\n", ASSERT, "right"),
        (f"Sure.\n```\n{GOOD}", ASSERT, "right"),
        (
            "```python\ndef plus(a, b):\n    return a + b\n```\nThen\n"
            "```python\ndef add(a, b):\n    return plus(a, b)\n```",
            ASSERT,
            "right",
        ),
        (f"{GOOD[:-3]}import sys\nif len(sys.argv) < 2:\n    sys.exit(1)\n```", ASSERT, "right"),
        (f"{BAD[:-3]}import sys\nsys.exit(1)\n```", ASSERT, "wrong"),
        (f"{GOOD[:-3]}if __name__ == '__main__':\n    print(input())\n```", CASE, "right"),
        ("def helper(a): 0\ndef add(a, b): return a + b", CHECK, "right"),
        ("def plus(a, b): return a + b", CHECK, "wrong"),
        ("class Solution:\n  def add(self, a, b): return a + b", CHECK, "right"),
    ],
)
def test_the_program_is_what_defines_what_the_tests_use(
    text: str, tests: str, expected: str
) -> None:
    assert verdict(text, tests, PROMPT) == expected


def test_a_candidate_that_nothing_names_gives_no_verdict() -> None:
    program = "def one(a, b): return a + b\ndef two(a, b): return a - b"
    assert verdict(program, CHECK) == "none"
    named = json.dumps({"test": CHECK, "entry_point": "two"})
    assert verdict(program, named) == "wrong"
