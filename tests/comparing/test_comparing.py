"""Which of two models answers better, as a judge says that sees both answers in both orders."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from http_answers import Asked, answering
from step_output import Folder

from experiments.dpo_ultrafeedback import Config, dpo_ultrafeedback
from steps.checking.compared import Compared, PairJudge
from steps.checking.config import JudgeConfig
from steps.checking.verdicts import Judgement, judged, no_verdict
from steps.compare_completions import compare_completions
from steps.comparing.llm_pair_judge import LlmPairJudge
from steps.data.rows.jsonl import read_json_lines, write_json_lines
from steps.sources import ModelSource, PreferenceData

QUESTION = [{"role": "user", "content": "Why?"}]


@dataclass(frozen=True)
class Longer(PairJudge):
    name: ClassVar[str] = "longer"

    def check(self, compared: Compared) -> Judgement:
        return judged(len(compared.first) > len(compared.second), "its length")


@dataclass(frozen=True)
class First(PairJudge):
    name: ClassVar[str] = "first"

    def check(self, compared: Compared) -> Judgement:
        return judged(True) if "hm" not in compared.second else no_verdict("it cannot tell")


@dataclass(frozen=True)
class CostlyFirst(First):
    is_costly: ClassVar[bool] = True


class Silent(PairJudge):
    name: ClassVar[str] = "silent"


def answers(folder: Path, *texts: list[str], question: Any = QUESTION) -> Path:
    """Completions of as many prompts."""
    folder.mkdir()
    records = [
        {"row": f"r{number}", "prompt": question, "completions": of}
        for number, of in enumerate(texts)
    ]
    write_json_lines(folder / "completions.jsonl", records)
    return folder


@pytest.fixture
def compare(tmp_path: Path) -> Callable[..., tuple[dict[str, Any], list[dict[str, Any]]]]:
    made: Any = compare_completions.function
    folders = iter(range(99))

    def run(
        own: list[list[str]], beside: list[list[str]], judge: PairJudge, **config: Any
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        given = [answers(tmp_path / str(next(folders)), *texts) for texts in (own, beside)]
        out = Folder(tmp_path / "out")
        metrics = made(out, *given, judge, JudgeConfig(**config))
        return metrics, read_json_lines(out.path / "comparisons.jsonl")

    return run


def test_a_win_is_one_in_both_orders_and_a_tie_counts_half(compare: Callable[..., Any]) -> None:
    own = [["long answer", "x"], ["same"], ["a"]]
    metrics, records = compare(own, [["short", "much longer"], ["same"], ["abc"]], Longer())
    assert [record["outcome"] for record in records] == ["win", "loss", "tie", "loss"]
    rate = metrics.pop("win_rate")
    assert rate["value"] == pytest.approx((0.5 + 0.5 + 0) / 3)  # the mean over prompts
    assert rate["low"] < rate["value"] < rate["high"]
    assert metrics == {
        "comparisons": 4, "wins": 1, "ties": 1, "losses": 2, "no_verdict": 0,
        "shown_first": 0.5, "longer": 1.0,
    }  # fmt: skip
    assert records[0]["text"] == "long answer"
    assert records[0]["beside"] == "short"
    assert [v["verdict"] for v in records[0]["verdicts"]] == ["right", "wrong"]


def test_a_judge_of_places_finds_nothing_better_and_the_metrics_show_it(
    compare: Callable[..., Any],
) -> None:
    metrics, records = compare(
        [["a"], ["b"], ["hm"]], [["c"], ["d"], ["e"]], First(), most_without=1
    )
    assert [record["outcome"] for record in records] == ["tie", "tie", "none"]
    assert metrics["win_rate"]["value"] == 0.5
    assert metrics["shown_first"] == 1
    assert "longer" not in metrics


def test_too_few_verdicts_are_an_error_with_the_reason(compare: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"1 of 2 comparisons have no verdict.* it cannot tell;"):
        compare([["a"], ["hm"]], [["c"], ["e"]], First())
    with pytest.raises(ValueError, match="the class Silent has no method check"):
        compare([["a"]], [["b"]], Silent())


def test_the_share_without_a_verdict_is_one_of_all_comparisons(
    compare: Callable[..., Any],
) -> None:
    """Though a costly judge is asked no further once it is too large, and equal texts are not."""
    same = [["x"]] * 18
    own, beside = [["a"], ["hm"], *same], [["c"], ["e"], *same]
    metrics, _ = compare(own, beside, CostlyFirst())  # one of 20, and of 4 judgements
    assert metrics["no_verdict"] == 1
    with pytest.raises(ValueError, match="have no verdict"):
        compare([["hm"], *own], [["e"], *beside], CostlyFirst())


@pytest.mark.parametrize(
    ("beside", "question", "why"),
    [
        ([["a"], ["b"]], QUESTION, "1 prompts were answered by one model and 2 by the other"),
        ([["a", "b"]], QUESTION, "row 'r0' has 1 completions of one model and 2 of the other"),
        (
            [["a"]],
            [{"role": "user", "content": "How?"}],
            "row 'r0' is not the same prompt",
        ),
    ],
)
def test_answers_to_other_prompts_are_not_compared(
    tmp_path: Path, beside: list[list[str]], question: Any, why: str
) -> None:
    made: Any = compare_completions.function
    own = answers(tmp_path / "own", ["a"])
    others = answers(tmp_path / "beside", *beside, question=question)
    with pytest.raises(ValueError, match=why):
        made(Folder(tmp_path / "out"), own, others, Longer())


def test_a_model_is_asked_in_both_orders_and_only_for_what_is_missing(
    compare: Callable[..., Any],
) -> None:
    seen: list[str] = []

    def answer(asked: Asked, content: Any) -> None:
        seen.append(content["messages"][0]["content"])
        first, second = seen[-1].split("|")[1:]
        word = "AB"[second > first]
        if first == "{first}" and seen.count(seen[-1]) == 1:
            word = "UNSURE"
        message = {"role": "assistant", "content": f"so\nVERDICT: {word}"}
        asked.say({"choices": [{"message": message, "finish_reason": "stop"}]})

    with answering(answer) as address:
        judge = LlmPairJudge("j", "{question}|{first}|{second}", address=address)
        own, beside = [["a"], ["{first}"], ["z"]], [["b"], ["c"], ["z"]]
        with pytest.raises(ValueError, match="the judge is unsure"):
            compare(own, beside, judge, most_without=0)
        metrics, records = compare(own, beside, judge)
    unsure = "Why?|{first}|c"
    assert sorted(seen) == sorted(["Why?|a|b", "Why?|b|a", "Why?|c|{first}", unsure, unsure])
    assert [record["outcome"] for record in records] == ["loss", "win", "tie"]
    assert (metrics["wins"], metrics["ties"], metrics["losses"]) == (1, 1, 1)
    assert records[0]["verdicts"][0]["reason"] == "so VERDICT: B"


def test_the_recipe_dpo_asks_about_the_prompts_of_its_pairs_whatever_their_format(
    tmp_path: Path,
) -> None:
    """``load_prompts`` refuses pairs without a column of prompts, as those of Anthropic's HH."""
    (tmp_path / "pairs.jsonl").write_text('{"chosen": "a", "rejected": "b"}\n')
    model = ModelSource(hub="a/model", revision="0" * 40)
    data = PreferenceData(path=str(tmp_path / "pairs.jsonl"), test_fraction=0.5)
    wanted = dpo_ultrafeedback(Config(data=data, model=model, judge=LlmPairJudge("j")))
    compared = wanted["after DPO beside before"]
    answered = [given.step for given in compared.inputs]
    assert [one.name for one in answered] == ["sample_completions"] * 2
    assert {of.step.name for one in answered for of in one.inputs} == {
        "prompts_of_pairs", "train_dpo", "train_sft",
    }  # fmt: skip
