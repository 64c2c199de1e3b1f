"""Answers to mathematical questions: where a text has its answer, what is read, what is equal."""

from types import SimpleNamespace
from typing import Any

import pytest

from steps.checking.math_expression import MathExpression
from steps.checking.verdicts import UNREADABLE, Answered, Verdict
from steps.online.rewarding.judging import require_verdicts

RIGHT, WRONG, NONE = Verdict.right, Verdict.wrong, Verdict.none

CHANGED = (
    r"minus 5|The answer is negative $5$.|It costs $5 million.|It costs $5M|5 squared|one over 5"
    r"|The answer is **5** dozen.|the square root of 5|5 over 2|The 5th|5 out of 10|It is not 5."
    r"|The answer is 5 to the power of 2.|The answer is 5 more than 7.|The answer is 5 and a half."
    r"|I tried 4 cases. The answer is five.|\boxed{5 \text{ or more}}|\boxed{5 \text{ million}}"
    r"|\boxed{\text{at least } 5}|\boxed{five}|It takes 3 hours and 5 minutes."
    r"|\boxed{5 \text{ lakh}}|5 lakh|It is 5 crore.|#### 5 gross|<answer>5 onwards</answer>"
    r"|The answer is up to 5.|The answer is $5$ upwards.|\boxed{\text{all but }5}|$\boxed{5}$ crore"
    r"|\boxed{\text{multiples of }5}|**Answer:** thrice 5|<answer>e to the 5</answer>|5 mod 7"
    r"|\boxed{5\text{k}}|5 K|\boxed{5\text{ mn}}|<answer>5 less 2</answer>|5 through 7|2 through 5"
    r"|\boxed{\text{none}}|<answer>nobody</answer>|The sum of 2 and 5|The answer is 10 to the $5$."
    r"|The answer is 5 of those.|The answer is therefore 5."
)
UNCHANGED = (
    r"The answer is 5 dollars.|= 5 apples|5 miles per hour|The answer is 5 (five).|It goes up to $5"
    r"|The final answer is $\boxed{5}$.|She has a total of 5 apples.|He needs 5 more to fill it."
    r"|He ran 5 times, and it is over.|The square root of 25 is 5.|12 minus 7 is 5."
    r"|\boxed{5 \text{ square feet}}|\boxed{5 \text{ units}^2}|<answer>5 apples</answer>"
    r"|The answer is 5, as all can see.|Answer: The total of all items is 5.|There are 5 of them."
    r"|\boxed{5\text{ kPa}}|\boxed{5 \text{ inches}^2}|The answer is 5 because 2 + 3 = 5."
)
"""Texts in which words beside the number change it, and in which they do not."""
PART_OF_MORE = (
    r"The answer is -$8$.|-**8**|$8$ + $3$|$8$/$3$|$8$^2|$-\boxed{8}$|$\boxed{8}^2$|\boxed{8}/3"
    r"|$2\cdot\boxed{8}$|\sqrt{\boxed{8}}|\frac{\boxed{8}}{3}|\boxed{8}\times 10^3|$2\boxed{8}$"
    r"|\boxed{8} million|minus \boxed{8}|-<answer>8</answer>|It was - 8"
)
ALONE = (
    r"- 8|* 8|$2+6=\boxed{8}$|**\boxed{8}**|- \boxed{8}|$\boxed{8}^\circ$"
    r"|\boxed{8} <answer></answer>|\boxed{8}\%|$x=\boxed{8},$ so|\boxed{\textbf{(B)}\ 8}"
    r"|\boxed{\text{(B) } 8}|It is (B) 8."
)
"""Texts in which signs beside the number change it, and in which they do not."""
UNITS = (
    r"\boxed{15\ \mathrm{m}/\mathrm{s}}|15 \text{ m}/\text{s}|15°C|15^\circ \text{C}"
    r"|\boxed{15\,\Omega}|\boxed{15\ \mathrm{N\cdot m}}|\boxed{15\ \mathrm{m}\,\mathrm{s}^{-1}}"
    r"|US$15|15 m/s"
)
FOUND = (
    "<think>I add.</think><answer>42</answer>"
    "|<think>I add 40 and 2.</think>\n<answer>42</answer>|<answer> 42 </answer>|<b>42</b>"
    "|<answer>41</answer> no <answer>42</answer>|<answer>42"
    "|The answer is 42, since 6 × 7 = 42.|The answer is 42 because 40 + 3 is 43."
    "|**Answer:** 42|The final answer is: **42**|#### 42"
    "|Step 1. Add.\nThe answer to question 3 is 42.|(see 42)|42!"
)
"""Texts that give 42."""
MATRIX = r"\begin{{pmatrix}}1\\{}\end{{pmatrix}}"
BOXED = rf"\boxed{{{{{MATRIX}}}}}"
COMPOUND = "15 ft 3 in|15 minutes 30 seconds|9 lb 15 oz|9 hr 15 min"


@pytest.mark.parametrize(
    ("answer", "texts"),
    [
        (r"\frac{3^{50}}{2^{100}}", {WRONG: [r"\boxed{\frac{3^{49}}{2^{100}}}"]}),
        (r"\frac{3^{50}}{2^{100}}", {RIGHT: [r"\boxed{\frac{3^{50}}{2^{100}}}"]}),
        (r"\frac{2^{2005}+1}{3 \cdot 2^{2006}}", {WRONG: [r"\boxed{\frac{1}{3 \cdot 2^{2006}}}"]}),
        (r"\frac{1}{2^{99}}", {WRONG: [r"\boxed{\frac{1}{2^{98}}}"]}),
        (r"\frac{1}{2^{99}}", {RIGHT: [r"\boxed{\frac{2}{2^{100}}}", r"\boxed{2^{-99}}"]}),
        (r"\frac{1}{20!}", {WRONG: [r"\boxed{\frac{1}{19!}}"]}),
        (r"\frac{1}{20!}", {RIGHT: [r"\boxed{\frac{1}{20 \cdot 19!}}"]}),
        (r"\frac{99!}{100^{99}}", {WRONG: [r"\boxed{\frac{98!}{100^{98}}}"]}),
        (r"\frac{2^{100}}{3^{100}}", {WRONG: [r"\boxed{\frac{2^{101}}{3^{101}}}"]}),
        (r"\left(\frac{1}{2}\right)^{60}", {WRONG: [r"\boxed{\left(\frac{1}{2}\right)^{61}}"]}),
        (r"\sqrt{3} \cdot 10^{-20}", {WRONG: [r"\boxed{\sqrt{2} \cdot 10^{-20}}"]}),
        (r"1-e^{-100}", {WRONG: [r"\boxed{1}"], RIGHT: [r"\boxed{1-\frac{1}{e^{100}}}"]}),
        (r"\sqrt{2}+\frac{1}{3^{100}}", {WRONG: [r"\boxed{\sqrt{2}}"]}),
        (r"\sqrt{10^{40}+1}", {WRONG: [r"\boxed{10^{20}}"]}),
        (r"\sqrt{2}+\sqrt{3}", {RIGHT: [r"\boxed{\sqrt{5+2\sqrt{6}}}"]}),
        (r"\frac{1}{2^{98}\sqrt{2}}", {RIGHT: [r"\boxed{\frac{\sqrt{2}}{2^{99}}}"]}),
        (r"\frac{x}{2^{98}}", {WRONG: [r"\boxed{\frac{x}{2^{99}}}"]}),
        (r"\frac{2x}{2^{100}}", {RIGHT: [r"\boxed{\frac{x}{2^{99}}}"]}),
        ("-0.3333333333", {RIGHT: [r"\boxed{-1/3}"]}),
        ("0.333333", {RIGHT: [r"\boxed{1/3}"]}),
        ("0.3333334", {WRONG: [r"\boxed{1/3}"]}),
        ("1/3", {RIGHT: [r"\boxed{0.3333333333}", r"\boxed{33.3333\%}"]}),
        ("1/3", {WRONG: [r"\boxed{0.333}"]}),
        (r"\pi", {RIGHT: [r"\boxed{3.14159}"], WRONG: [r"\boxed{3.14}"]}),
        ("0.333333, 0.5", {RIGHT: [r"\boxed{\{1/3, 1/2\}}"]}),
        (r"\frac{x}{2}", {RIGHT: [r"\boxed{0.5x}"]}),
        ("1000000.4", {WRONG: [r"\boxed{1000000}"]}),
        ("0.3", {RIGHT: [r"\boxed{0.1+0.2}"]}),
        ("42", {RIGHT: FOUND.split("|")}),
        ("1/2", {RIGHT: ["<answer>1/2</answer>", r"The answer is $\frac{1}{2}$."]}),
        (
            "2",
            {
                WRONG: [
                    "<think>I add 40 and 2.</think>\n<answer>42</answer>",
                    "<think>40 and 2",
                    r"<think>so \boxed{2}</think> 3",
                ],
                NONE: [r"\boxed{1, 2, \ldots, n}"],
                RIGHT: ["It is **2**", "x=1: no. x=2: yes. So 2"],
            },
        ),
        ("7", {WRONG: ["I put 7 <answer>x</answer>", "The answer is 3 × 7", "It is 3*7"]}),
        ("7", {RIGHT: ["7 apples"]}),
        ("21", {RIGHT: ["The answer is 3 × 7", "It is 3 · 7 ."]}),
        (r"\sqrt{2}", {RIGHT: [r"Answer: \sqrt{2}", r"The answer is \sqrt{2}", "sqrt(2)"]}),
        (r"2\sqrt{3}", {RIGHT: ["So we get 2√3."]}),
        ("3", {WRONG: ["So we get 2√3."], RIGHT: [r"\boxed{\log_2 8}"]}),
        (r"5\sqrt{2}", {RIGHT: [r"It is 5\sqrt{2} cm."]}),
        (
            "5",
            {
                RIGHT: [
                    r"The cost is \$5.",
                    "It costs $5.",
                    r"so $\$5$",
                    r"\boxed{5~\text{cm}}",
                    "It is 5~cm",
                    r"5~\mathrm{m}",
                    "I have 5",
                    "There is a 5",
                    "x = 5, so the answer is x = 5.",
                    "2 + 3 = 5.",
                    r"\boxed{x = 5}",
                    "5cm",
                    r"\boxed{5cm^2}",
                    "- 5",
                ],
                NONE: [
                    r"\boxed{9^{9^{9}}}",
                    r"\boxed{10000000!}",
                    "12:31",
                    "In 2020, 5 people came.",
                    "5m",
                ],
                WRONG: ["", "Yes"],
            },
        ),
        ("1200.5", {RIGHT: [r"The cost is \$1,200.50."]}),
        ("6", {RIGHT: ["It costs not $5 but $6."]}),
        (r"28\%", {RIGHT: ["It is 28 percent.", "28", "0.28"]}),
        ("28", {RIGHT: [r"28\%", "28%", r"$28\%$", r"28$\%$", r"\boxed{28 \text{ percent}}"]}),
        ("28%", {RIGHT: ["28 percent"], WRONG: ["27%"]}),
        ("0.28", {RIGHT: [r"\boxed{28\%}"]}),
        ("0.29", {WRONG: ["It is 28 percent"]}),
        (r"1, 2, \ldots, n", {NONE: [r"\boxed{1, 3, 5, \ldots, 2n-1}"]}),
        (r"1, 2, \dots, n", {NONE: [r"\boxed{2}"]}),
        ("9", {NONE: ["1, 2, ..., 9", r"\boxed{9^{9^{9^{9}}}}"]}),
        (r"15\text{ cm}^2", {RIGHT: ["It is 15 cm^2."], WRONG: ["16 cm^2"]}),
        (r"5\pi \text{ cm}", {RIGHT: [r"We get 5\pi"], WRONG: ["5"]}),
        ("6", {RIGHT: ["$3!$", r"\boxed{3!}"], NONE: ["It is 3!"]}),
        (r"\frac{14}{3}", {RIGHT: [r"Thus $x$ is 3. The answer is $\frac{14}{3}$."]}),
        ("104_6", {NONE: ["104"]}),
        ("120", {NONE: [r"\boxed{120_{3}}", "It is 5!"], RIGHT: ["$5!$"]}),
        ("4", {RIGHT: ["We have 12 apples, and 4 are mine."]}),
        ("3, 4", {RIGHT: ["The values are 3 and 4."]}),
        ("0.75", {RIGHT: [r"The result is $x = \frac{3}{4}$."]}),
        ("3/4", {RIGHT: [r"We get \[ x = \frac{3}{4} \]", r"\boxed{\frac{6}{8}}"]}),
        ("3, -3", {RIGHT: [r"\(x=3\) or \(x=-3\)"]}),
        ("3,-3", {RIGHT: ["$3$ and $-3$"]}),
        ("60", {RIGHT: ["The train goes 60 km/h", r"\boxed{60 \text{ km/h}}"]}),
        ("-3, 3", {RIGHT: [r"\boxed{3}, \boxed{-3}", r"\boxed{3} and \boxed{-3}"]}),
        ("1,2", {WRONG: [r"\boxed{1} then we find \boxed{2}"]}),
        ("5m", {NONE: ["5"]}),
        ("$ab+cd$", {RIGHT: [r"\boxed{ab+cd}"]}),
        ("$2yx$", {RIGHT: [r"\boxed{2xy}"]}),
        ("[0,1]", {RIGHT: [r"\boxed{x \in [0,1]}"]}),
        (r"(-\infty,2)", {RIGHT: [r"\boxed{(-\infty, 2)}"]}),
        (MATRIX.format(2), {RIGHT: [BOXED.format(2)], WRONG: [BOXED.format(3)]}),
        (MATRIX.format("2^{-98}"), {WRONG: [BOXED.format("2^{-99}")]}),
        ("2^{-98}, 1", {WRONG: [r"\boxed{2^{-99}, 1}"]}),
        ("(2^{-98}, 1)", {WRONG: [r"\boxed{(2^{-99}, 1)}"]}),
        ("y = 2^{-98}x", {WRONG: [r"\boxed{y = 2^{-99}x}"]}),
        ("1<x<2", {RIGHT: [r"\boxed{1<x<2}"]}),
        (r"\pi r^2", {RIGHT: [r"\boxed{\pi r^2}"]}),
        ("6.28319", {RIGHT: [r"\boxed{2\pi}"]}),
        ("10", {RIGHT: [r"\boxed{\binom{5}{2}}"]}),
        ("90", {RIGHT: [r"\boxed{90^\circ}", "It is 90°."]}),
        ("1234", {RIGHT: [r"\boxed{1{,}234}", r"\boxed{1,234}", "It is 1,234."]}),
        (r"\text{Evelyn}", {NONE: [r"\boxed{\text{Evelyn}}"]}),
        ("1024", {RIGHT: ["2**10"]}),
        (r"2\pi", {RIGHT: ["2 pi"]}),
        ("20", {NONE: [r"\boxed{3 \text{ hours } 20 \text{ minutes}}"]}),
        ("3.14", {NONE: [r"\boxed{\frac{22}{7} \approx 3.14}"]}),
        ("13", {RIGHT: ["So, the total is 6 + 7 = 13 dollars."]}),
        ("-5", {RIGHT: ["-5", "$-5$", "The answer is -5."]}),
        ("5", {NONE: CHANGED.split("|"), RIGHT: UNCHANGED.split("|")}),
        ("6", {RIGHT: [r"\boxed{2x3}", "So 2x3=6", "It is 2 x 3."], WRONG: [r"\boxed{2x^3}"]}),
        ("-1", {RIGHT: [r"\boxed{e^{i\pi}}", r"\boxed{i^2}"], WRONG: [r"\boxed{e^{i}}"]}),
        ("5000", {NONE: ["5k", r"\boxed{5\text{k}}"]}),
        ("3i+2", {RIGHT: [r"\boxed{2+3i}"], WRONG: [r"\boxed{2-3i}", r"\boxed{2+3j}"]}),
        (r"\frac{1-i}{2}", {RIGHT: [r"\boxed{\frac{1}{1+i}}"]}),
        (r"e^{i\pi/3}", {RIGHT: [r"\boxed{\frac{1+i\sqrt{3}}{2}}"]}),
        ("0.5", {RIGHT: [r"\boxed{.5}", "It is .5 m", "It costs $.50."], WRONG: ["5"]}),
        (".25", {RIGHT: [r"\boxed{\frac14}"], WRONG: [r"\boxed{25}"]}),
        ("50", {WRONG: ["It costs $.50.", "<answer>.50</answer>"]}),
        ("-8", {RIGHT: [r"\boxed{- 8}", "$- 8$", r"\boxed{-\text{8}}", "- It is $-8$"]}),
        (r"- \frac{1}{2}", {WRONG: [r"\boxed{\frac12}"], RIGHT: [r"\boxed{-0.5}"]}),
        ("8", {NONE: PART_OF_MORE.split("|"), RIGHT: ALONE.split("|"), WRONG: [r"\boxed{- 8}"]}),
        ("(B) 8", {RIGHT: [r"\boxed{8}"], WRONG: [r"\boxed{9}"]}),
        ("15", {RIGHT: UNITS.split("|"), WRONG: [r"\boxed{16\ \mathrm{m}/\mathrm{s}}", "16 N·m"]}),
        ("15", {NONE: ["15 N·m", r"\boxed{15\ \mathrm{N\cdot m}\cdot s}", *COMPOUND.split("|")]}),
        (r"15 \mathrm{~m} / \mathrm{s}", {RIGHT: [r"\boxed{15}"], WRONG: [r"\boxed{16}"]}),
        ("9.5", {NONE: ["9 and 1/2"]}),
        ("25", {NONE: ["<answer>twenty-five</answer>", "The answer is about twenty-five."]}),
        ("-12", {NONE: ["It is minus twelve.", r"\boxed{\text{negative twelve}}"]}),
        ("12", {NONE: ["There are 3 boxes of 4, so twelve in total."]}),
        (r"(3,\infty)", {NONE: [r"\boxed{x>3}"], WRONG: [r"\boxed{(4,\infty)}"]}),
        ("x<3 or x>7", {NONE: [r"\boxed{(-\infty,3)\cup(7,\infty)}"]}),
        ("(3,4)", {NONE: [r"\boxed{\{3,4\}}"], RIGHT: [r"\boxed{(3,4)}"]}),
    ],
)
def test_the_expression_that_a_text_gives_is_judged(
    answer: str, texts: dict[Verdict, list[str]]
) -> None:
    pytest.importorskip("math_verify", reason="the extra `math` is not installed")
    for verdict, each in texts.items():
        for text in each:
            judgement = MathExpression().check(Answered(text, answer))
            assert judgement.verdict is verdict, (text, judgement.reason)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (r"\boxed{72 \text{ clips altogether}}", RIGHT),
        ("The answer is 72 clips altogether in May.", RIGHT),
        ("The answer is 71 clips altogether in May.", WRONG),
        ("So she sold 72 altogether.", RIGHT),
        (r"\boxed{72 \text{ lakh}}", NONE),
        (r"\boxed{\text{altogether } 72}", NONE),
    ],
)
def test_words_of_the_question_are_units(text: str, verdict: Verdict) -> None:
    pytest.importorskip("math_verify", reason="the extra `math` is not installed")
    asked = "She sold 2 lakh clips in May. How many clips did she sell altogether in May and June?"
    answered = Answered(text, "72", [{"role": "user", "content": asked}])
    assert MathExpression().check(answered).verdict is verdict


@pytest.mark.parametrize(
    "text",
    ["9^{9^{9}}", "(" * 300 + "1" + ")" * 300, "1+" * 2000 + "1", "10000000!", r"1, \\ldots"],
)
def test_a_text_that_cannot_be_read_is_no_failure_of_the_checker(text: str) -> None:
    """It is found at once, so a model that repeats it ends no run."""
    pytest.importorskip("math_verify", reason="the extra `math` is not installed")
    judgement = MathExpression().check(Answered(rf"\boxed{{{text}}}", "5"))
    assert judgement.verdict is NONE
    assert judgement.reason.startswith(UNREADABLE)
    rollouts: Any = [SimpleNamespace(verdict=judgement.verdict, reason=judgement.reason)]
    require_verdicts(rollouts, 0.05)
    assert not MathExpression().check(Answered("5", text)).reason.startswith(UNREADABLE)
