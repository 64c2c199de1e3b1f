"""Checkers, and verdicts from processes that can be killed."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from failing_checkers import Disturbing, Scripted
from places import REPOSITORY, SUPPORT_PATH
from waiting import HANGS_SECONDS, is_running, wait_until

from steps.checking import judges as judges_module
from steps.checking.boxed import Boxed, require_answers
from steps.checking.checkers import CHECKERS
from steps.checking.code import Code
from steps.checking.config import JudgeConfig
from steps.checking.exact import Exact
from steps.checking.judges import JudgeError, Judges
from steps.checking.math_expression import MathExpression
from steps.checking.pattern import Pattern
from steps.checking.verdicts import (
    Answered,
    Checker,
    Judgement,
    Verdict,
    require_checkable,
)

RIGHT, WRONG, NONE = Verdict.right, Verdict.wrong, Verdict.none
SOLUTIONS = (
    r"<answer>42</answer>|\boxed{42}|The answer is 42|So she has 42.|He has 3 + 4 = 7 apples"
    r"|40 + 2 = 42|Adding 40 and 2 gives 42|$72$|\(72\)|= 72|Solution: 72|Result: 72"
    r"|Final answer 72|Therefore x = 5|so the total is 72|Thus, 5."
    r"|There are 42 apples|42 is the answer|Hence 42 apples|**42**|`42`|<b>42</b>|42.|⇒ 42"
)
ANSWERS = (
    r"x^2 + 3 = 0|x = 3 \text{ or } x = 5|3 hours and 20 minutes|42 sq. ft.|July 4, 1776"
    r"|The Lord of the Rings|The 7 Habits of Highly Effective People"
    r"|\text{all real numbers except } 3|42 miles per hour|$3 and $4|(5, 7)|x = 5|4:3|It depends"
)


def test_every_checker_of_the_folder_has_a_name() -> None:
    assert {"boxed", "code", "exact", "llm_judge", "math_expression", "pattern"} <= CHECKERS.keys()


@pytest.mark.parametrize(
    ("checker", "text", "answer", "verdict"),
    [
        (Exact(), " Paris\n", "Paris", RIGHT),
        (Exact(), "paris", "Paris", WRONG),
        (Exact(ignore_case=True), "paris", "Paris", RIGHT),
        (Exact(), "Paris", None, NONE),
        (Exact(), "Zu\u0308rich", "Z\u00fcrich", RIGHT),
        (Exact(), "5\u00b2", "52", WRONG),
        (Boxed(), "\\boxed{Z\u00fcrich}", "Zu\u0308rich", RIGHT),
        (Boxed(), r"\boxed{42}", "42", RIGHT),
        (Boxed(), r"so \boxed{42}", "42", WRONG),
        (Boxed(anywhere=True), r"\boxed{1}, no: \boxed{42} is it", "42", RIGHT),
        (Boxed(anywhere=True), r"\boxed{42}, no: \boxed{1}", "42", WRONG),
        (Boxed(anywhere=True), "42", "42", WRONG),
        (Boxed(), r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", RIGHT),
        (Boxed(anywhere=True), r"not \boxed{2} but \boxed{\frac{1}{2}}.", "2", WRONG),
        (Boxed(anywhere=True), r"\boxed{42} and \boxed{4", "42", RIGHT),
        (Boxed(), r"\boxed{42}", None, NONE),
        (Boxed(), r"\boxed{}", " ", NONE),
        (Boxed(), r"\boxed{\boxed{42}}", "42\n", RIGHT),
        (Boxed(anywhere=True), r"so \boxed{1 + \boxed{42}}", "42", WRONG),
        (Boxed(), r"\boxed{−４２}", "-42", RIGHT),
        (Boxed(), r"\boxed {42}", "42", RIGHT),
        (Boxed(anywhere=True), r"so $\fbox{ 42 }$", "42", RIGHT),
        (Boxed(anywhere=True), r"\boxed{42}. \fbox{Done}", "42", RIGHT),
        (Boxed(anywhere=True), r"\boxedIn{42}, \box{42}", "42", WRONG),
        (Pattern(), "It is 4, or 42", "42", RIGHT),
        (Pattern(), "It is 42, or 4", "42", WRONG),
        (Pattern(), "It is 1,234", "234", WRONG),
        (Pattern(), "It is 1,234", "1234", RIGHT),
        (Pattern(), "It is 1234.", "1,234", RIGHT),
        (Pattern(), "It is 5", "0.5", NONE),
        (Boxed(anywhere=True), r"<think>\boxed{42}</think> I do not know", "42", WRONG),
        (Pattern(), "It is −5", "5", WRONG),
        (Pattern(), "It is −5.", " -5", RIGHT),
        (Pattern(), "It is 0.5.", "5", WRONG),
        (Pattern(), "It is 10 + 5", "5", WRONG),
        (Pattern(), "It is 10^5", "5", WRONG),
        (Pattern(), "It is 1 234", "234", WRONG),
        (Pattern(), "x=-5", "-5", RIGHT),
        (Pattern("(?i)yes"), "Yes, it is", None, RIGHT),
        (Pattern("(?i)yes"), "no", None, WRONG),
    ],
)
def test_a_rule_judges(checker: Checker, text: str, answer: str | None, verdict: Verdict) -> None:
    assert checker.check(Answered(text, answer)).verdict is verdict


@pytest.mark.parametrize(
    ("checker", "answer", "fault"),
    [
        (Exact(), None, "has no answer"),
        (Boxed(), " ", "has no answer"),
        (Boxed(), "####", "is only the mark of one"),
        (Boxed(), r"So it is \boxed{42", "is cut"),
        (Boxed(), "We add 40 and 2.\nThat is 42.", "is a whole solution"),
        *[(Boxed(), line, "is a whole solution") for line in SOLUTIONS.split("|")],
        *[(Boxed(), line, "") for line in ANSWERS.split("|")],
        (Boxed(), "[{'id': 3}]", "is a rule or tests"),
        (Boxed(), r"\frac{1}{2}", ""),
        (Pattern(), "0.5", "is no whole number"),
        (Pattern("(?P<answer>.*)"), "0.5", ""),
        (Pattern("yes"), None, ""),
        (Code(), "['5']", "has values and no tests"),
        (Code(), "pass", "use nothing of the program"),
        (MathExpression(), "12:30", "math-verify reads a part"),
        (MathExpression(), "yes", "is in words"),
        (MathExpression(), "5 million", "words are part of it"),
        (MathExpression(), "five", "is in words"),
        (MathExpression(), "5 lakh", "the word 'lakh' may change it"),
        (MathExpression(), r"\text{all except }3", "may change it"),
        (MathExpression(), "18 dollars", ""),
        (MathExpression(), "5 m", ""),
    ],
)
def test_what_no_completion_can_equal_is_told_before_anything_is_sampled(
    checker: Checker, answer: str | None, fault: str
) -> None:
    if isinstance(checker, MathExpression):
        pytest.importorskip("math_verify")
    assert fault in checker.fault_of(answer)
    assert bool(checker.fault_of(answer)) is bool(fault)
    if fault:
        with pytest.raises(
            ValueError, match=f"^row 'r1': .*{checker.name} could find no .* [19] of 9"
        ):
            require_checkable(checker, {"r1": answer, **dict.fromkeys("abcdefgh", "5")}, 0.05)


# --- code -----------------------------------------------------------------------------------------

ADD = "Here:\n```python\ndef add(a, b):\n    return a + b\n```\nDone."
TESTS = "assert add(2, 3) == 5"


@pytest.mark.parametrize(
    ("text", "verdict", "reason"),
    [
        (ADD, RIGHT, ""),
        (ADD.replace("+", "-"), WRONG, "AssertionError"),
        ("```sh\npip list\n```\n" + ADD + "\nIt says:\n```\n5\n```", RIGHT, ""),
        ("def add(a, b): return 5", RIGHT, ""),
        ("import atexit; atexit.register(print, 'bye')\n" + "def add(a, b): return 5", RIGHT, ""),
        ("import threading; threading.Thread(target=threading.Event().wait).start()\n"
         "def add(a, b): return 5", RIGHT, ""),
        ("import sys; sys.exit(0)", WRONG, "NameError"),
        ("import os; os._exit(0)", WRONG, "ended early"),
        ("def add(a, b): raise SystemExit", WRONG, "ended early"),
        ("import time\nwhile True: time.sleep(1)", WRONG, "not done within"),
        ("room = bytearray(2**30)", WRONG, "MemoryError"),
        ("open('large', 'wb').write(bytes(2**25))", WRONG, "File too large"),
        ("import os; assert os.listdir() == [] == [n for n in os.environ if 'PATH' in n]\n"
         "def add(a, b): return a + b", RIGHT, ""),
        ("no program at all", WRONG, "SyntaxError"),
        ("1. So:\n   ```python\n   def add(a, b):\n     return a + b\n   ```\n", RIGHT, ""),
    ],
)  # fmt: skip
def test_a_program_is_right_if_it_runs_to_the_end_of_the_tests(
    text: str, verdict: Verdict, reason: str
) -> None:
    limits = (1, 10, 60) if "while" in text else (60,)  # a slow machine begins no program in 1 s
    judged = (Code(seconds=s, allow_network=True).check(Answered(text, TESTS)) for s in limits)
    judgement = next(each for each in judged if each.verdict is not NONE)
    assert judgement.verdict is verdict
    assert reason in judgement.reason


def test_tests_in_a_list_are_run_and_values_are_no_tests() -> None:
    listed = json.dumps(["assert add(2, 3) == 5", "assert add(2, 2) == 4"])
    assert Code().check(Answered(ADD, listed)).verdict is RIGHT
    assert Code().check(Answered(ADD, listed.replace("== 4", "== 5"))).verdict is WRONG
    for tests in ("assert(add(2, 3) == 6)", "found = add(2, 3)\nassert found == 6"):
        assert Code().check(Answered(ADD, json.dumps([tests]))).verdict is WRONG
    for values in ('{"inputs": ["2 3"], "outputs": ["5"], "fn": null}', "['5']", "5"):
        assert Code().check(Answered(ADD, values)).verdict is NONE


@pytest.mark.parametrize("checker", [Boxed(), Pattern(), MathExpression()])
@pytest.mark.parametrize(
    "rule",
    [
        '{"func_name": "validate_word_constraint", "N": 3, "quantifier": null}',
        "[{'instruction_id': ['length:3'], 'kwargs': [None]}]",
        '["assert add(1, 2) == 3", "assert add(0, 3) == 3"]',
    ],
)
def test_an_answer_that_is_a_rule_or_tests_makes_no_text_wrong_or_right(
    checker: Checker, rule: str
) -> None:
    if isinstance(checker, MathExpression):
        pytest.importorskip("math_verify")
    assert checker.check(Answered(r"\boxed{3}", rule)).verdict is NONE
    for answer in ("[0, 3]", "{0, 3}") if not isinstance(checker, Pattern) else ("4,000",):
        assert checker.check(Answered(r"\boxed{4}", answer)).verdict is WRONG
    with pytest.raises(ValueError, match="row 'r1': the row's answer is a rule or tests"):
        require_answers([{"row": "r1", "answer": rule}])


def test_what_a_program_has_started_ends_with_it(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    program = (
        "import subprocess\nstarted = subprocess.Popen(['/bin/sleep', '600'])\n"
        f"open({str(pid)!r}, 'w').write(str(started.pid))\ndef add(a, b): return a + b"
    )
    judgement = Code(seconds=60, allow_network=True).check(Answered(program, TESTS))
    assert judgement == Judgement(RIGHT)
    wait_until(lambda: not is_running(int(pid.read_text())))


def test_a_program_reaches_no_network() -> None:
    program = "import socket\nsocket.create_connection(('127.0.0.1', 9), 1)"
    judgement = Code(seconds=60).check(Answered(program, TESTS))
    if judgement.verdict is NONE:
        assert "set allow_network" in judgement.reason  # as the system lets nobody leave it
    else:
        assert judgement.verdict is WRONG
        assert "unreachable" in judgement.reason


def test_a_sandbox_that_fails_gives_no_verdict() -> None:
    more_than_a_limit_can_be = Code(seconds=60, memory_mb=2**50, allow_network=True)
    judgement = more_than_a_limit_can_be.check(Answered("x = 1", "assert x == 1"))
    assert judgement.verdict is NONE
    assert "the sandbox failed before the program began: OverflowError" in judgement.reason


def test_no_program_can_feign_a_sandbox_that_fails() -> None:
    program = """
import contextlib, os
for descriptor in range(3, 64):
    with contextlib.suppress(OSError):
        os.write(descriptor, b"no network")
os._exit(113)
"""
    code = Code(seconds=60, allow_network=True)
    assert code.check(Answered(program, TESTS)).verdict is WRONG


# --- math-verify ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "answer", "verdict"),
    [
        (r"It is $\frac{1}{2}$.", "0.5", RIGHT),
        (r"\boxed{x^2 + 2x + 1}", "$(x+1)^2$", RIGHT),
        (r"It is $\frac{1}{3}$.", "0.5", WRONG),
        (r"\boxed{\frac12}", "0.5", RIGHT),
        (r"\boxed{1}, no: \boxed{2}", "2", RIGHT),
        ("It is −５", "-5", RIGHT),
        (r"\boxed{1\,234}", "1234", RIGHT),
        (r"\boxed{1\,234}", "235", WRONG),
        (r"\boxed{50\%}", "50%", RIGHT),
        ("1.5e-3", "0.0015", RIGHT),
        ("2e-10", "1e-10", WRONG),
        ("1 1/2", "1.5", RIGHT),
        ("1 1/2", "11/2", WRONG),
        ("12:31", "12:30", NONE),
        ("I do not know", "0.5", WRONG),
        ("1", None, NONE),
        (r"\boxed{3\pi}", r"3\pi", RIGHT),
        (r"\boxed{3}", r"3\pi", WRONG),
        (r"3\pi", "3", WRONG),
        (r"\boxed{\sqrt{2}}", r"\sqrt{2}", RIGHT),
        (r"so $2\sqrt{2}$", r"2\sqrt{2}", RIGHT),
        (r"\boxed{2}", r"2\sqrt{2}", WRONG),
        (r"\boxed{(1,2)}", "(1, 2)", RIGHT),
        (r"\boxed{2}", "(1, 2)", WRONG),
        (r"\boxed{2x+3}", "2x + 3", RIGHT),
        (r"\boxed{2}", "2x + 3", WRONG),
        (r"\boxed{3, -3}", "-3, 3", RIGHT),
        (r"\boxed{1024}", "2^{10}", RIGHT),
        (r"\boxed{1\frac{1}{2}}", r"1\frac{1}{2}", RIGHT),
        (r"\boxed{0}", r"0.\overline{3}", WRONG),
        (r"\boxed{1/6}", r"0.1\overline{6}", RIGHT),
        (r"\boxed{5}", r"5\text{ cm}", RIGHT),
        (r"\boxed{7}", "7 apples", RIGHT),
        (r"\boxed{5}", "x = 5", RIGHT),
        (r"\boxed{20}", "3 hours 20 minutes", NONE),
        (r"\boxed{2}", "2:30 pm", NONE),
        (r"\boxed{25}", "25 cm^2", RIGHT),
        ("The energy is 10 J.", "10 J", RIGHT),
        (r"\boxed{1,200 W}", "1200", RIGHT),
        (r"\boxed{10}", "10 m/s^2", RIGHT),
        (r"\boxed{2}", "10 m/s^2", WRONG),
        (r"\boxed{3}", "3 x/y", WRONG),
        (r"\boxed{3}", "3N", NONE),
        ("A: 5", "5", RIGHT),
        ("2 + 3 = 5", "5", RIGHT),
        (r"\boxed{(2,1)}", "(1,2)", WRONG),
        (r"\boxed{4}", "2²", RIGHT),
        (r"\boxed{A}", "A", NONE),
        ("It is 2√2", "2√2", RIGHT),
        (r"\boxed{2√2}", r"2\sqrt{2}", RIGHT),
        (r"\boxed{1½}", "3/2", RIGHT),
        (r"\boxed{x²}", "x^2", RIGHT),
        (r"\boxed{6.02 \times 10^{23}}", "6.02e23", RIGHT),
        ("It is 6.02×10²³.", r"6.02 \cdot 10^{23}", RIGHT),
        (r"\boxed{6.03 \times 10^{23}}", "6.02e23", WRONG),
        (r"\boxed{500}", r"1/2 \times 10^3", RIGHT),
        (r"\boxed{10^{400}}", "1e400", RIGHT),
        (r"\boxed{400e}", "1e400", WRONG),
        ("0", "1e-400", WRONG),
        ("1 000", "1000", RIGHT),
        (r"\boxed{1 234 567}", "1234567", RIGHT),
        ("There are 1 000 of them.", "0", WRONG),
        ("0", "1 000", WRONG),
        (r"\boxed{5.}", "5", RIGHT),
        (r"\boxed{\varnothing}", r"\emptyset", RIGHT),
        ("5 or more", "5 or more", NONE),
        (r"\boxed{2}", r"\{x : x > 2\}", NONE),
        (r"\boxed{2}", r"\{(x, y) \mid x > 2\}", NONE),
        (r"\boxed{\{|x|, 2\}}", r"\{2, |x|\}", RIGHT),
        (r"\boxed{2}", r"n = 2k, k \in \mathbb{Z}", NONE),
        (r"\boxed{11}", "7 mod 11", NONE),
    ],
)
def test_an_expression_that_equals_the_answer_is_right(
    text: str, answer: str | None, verdict: Verdict
) -> None:
    pytest.importorskip("math_verify", reason="the extra `math` is not installed")
    assert MathExpression().check(Answered(text, answer)).verdict is verdict


# --- processes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0, -1.0, float("inf"), float("nan")])
def test_a_verdict_has_an_end_which_a_plan_knows(seconds: float) -> None:
    with pytest.raises(ValueError, match="time_limit must be above 0"):
        JudgeConfig(time_limit=seconds)


def test_verdicts_come_in_the_order_of_completions_and_failures_are_no_verdict() -> None:
    texts = ["right", "die", "wrong", "right", "raise", "nothing", "fork", "text"]
    texts += ["endless", "unnormalised", "unrewarded", "huge", *["right", "wrong"] * 20]
    with Judges(Scripted(), 2, time_limit=HANGS_SECONDS) as judges:
        found = judges.judge([Answered(text) for text in texts])
        assert judges.judge([]) == []
        assert judges.judge([Answered("right")]) == [Judgement(RIGHT)]
    expected = {"right": RIGHT, "wrong": WRONG, "fork": WRONG}
    assert [one.verdict for one in found] == [expected.get(text, NONE) for text in texts]
    reasons = {text: one.reason for text, one in zip(texts, found, strict=True)}
    assert Judgement(NONE, "half a character: \ud800").reason == "half a character: ?"
    assert reasons["die"] == "the checker's process ended (exit status 7)"
    assert reasons["raise"] == "KeyError: 'no such thing'"
    assert reasons["nothing"] == "the checker returned None, no judgement"
    assert reasons["text"] == "ValueError: a checker judges 'no', which is neither right nor wrong"
    assert reasons["endless"].startswith("ValueError: grade must be finite")
    assert reasons["unnormalised"] == "the checker gave the reward nan, which is no number"
    assert reasons["huge"] == "OverflowError: int too large to convert to float"
    assert reasons["unrewarded"] == "the checker gave the reward None, which is no number"


class ClockOfAHang:
    """Takes the place of `time` for the processes of a checker: seconds pass only while the process
    whose id the journal holds is there. So no other runs out of time, however slow the machine."""

    def __init__(self, journal: Path):
        self.journal = journal
        self.passed, self.before = 0.0, time.monotonic()

    def monotonic(self) -> float:
        now = time.monotonic()
        if self.journal.exists() and is_running(int(self.journal.read_text() or 0)):
            self.passed += now - self.before
        self.before = now
        return self.passed


@pytest.mark.parametrize(
    ("checker", "hang", "reason"),
    [
        (Scripted, "hang", "no verdict within 0.5 s"),
        (Disturbing, "a part", "no verdict within 0.5 s"),
        (Disturbing, "orphan", "the checker's process ended (exit status 3)"),
    ],
    ids=["it hangs", "it sends a part", "it ends and leaves a process"],
)
def test_a_checker_that_says_no_more_costs_one_verdict_and_the_time_that_one_may_take(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    checker: type[Scripted | Disturbing],
    hang: str,
    reason: str,
) -> None:
    journal = tmp_path / "hung"
    monkeypatch.setattr(judges_module, "time", ClockOfAHang(journal))
    texts = ["right", hang, "wrong", "right"]
    with Judges(checker(str(journal)), time_limit=0.5) as judges:
        found = judges.judge([Answered(text) for text in texts])
    none = Judgement(NONE, reason)
    assert found == [Judgement(RIGHT), none, Judgement(WRONG), Judgement(RIGHT)]
    assert not is_running(int(journal.read_text()))


def test_a_regular_expression_without_end_is_no_verdict() -> None:
    checker = Pattern("(a+)+$")
    with Judges(checker, time_limit=0.1) as judges:
        (endless,) = judges.judge([Answered("a" * 50 + "b")])
    with Judges(checker) as judges:
        (plain,) = judges.judge([Answered("aa")])
    assert (endless.verdict, plain.verdict) == (NONE, RIGHT)


def test_a_checker_has_the_name_of_its_class_and_without_its_function_is_refused() -> None:
    class Unfinished(Checker):
        pass

    assert (Unfinished().name, Exact().name) == ("unfinished", "exact")
    with pytest.raises(ValueError, match="class Unfinished has no method check; write one"):
        Judges(Unfinished())


def test_a_checker_that_no_process_can_be_given_is_an_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    Scripted.__module__, module = "no_such_module", Scripted.__module__
    sys.modules["no_such_module"] = sys.modules[module]
    try:
        with (
            Judges(Scripted()) as judges,
            pytest.raises(JudgeError, match=r"'scripted' end before they judge \(exit status 1\)"),
        ):
            judges.judge([Answered("right")])
    finally:
        Scripted.__module__ = module
        del sys.modules["no_such_module"]
    assert "no_such_module" in capfd.readouterr().err


_ORPHANS = """
import sys
sys.path[:0] = sys.argv[2:]
from failing_checkers import Scripted
from steps.checking.judges import Judges
from steps.checking.verdicts import Answered

if __name__ == "__main__":
    with Judges(Scripted(sys.argv[1]), time_limit=3600) as judges:
        judges.judge([Answered("hang")])
"""


def test_processes_end_with_the_one_that_asks_however_it_ends(tmp_path: Path) -> None:
    script, journal = tmp_path / "ask.py", tmp_path / "hung"
    script.write_text(_ORPHANS)
    asking = subprocess.Popen(
        [
            sys.executable,
            script,
            journal,
            REPOSITORY,
            *SUPPORT_PATH.split(os.pathsep),
        ]
    )
    wait_until(lambda: journal.is_file() and journal.read_text() != "")
    judging = int(journal.read_text())
    assert is_running(judging)
    asking.kill()
    asking.wait()
    wait_until(lambda: not is_running(judging))
