"""The steps of reward models: composed, refused, run one after the other, and interrupted."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from experiment_desk import Desk
from step_output import Folder
from tiny_models import (
    llama,
    model_folder,
    pair_records,
    token_files,
    word_tokenizer,
)
from waiting import leaving_at

from experiments import rlhf
from pipeline import TemperError, adopt
from pipeline.show.views import Curves, Measures
from steps.build_pairs import build_pairs
from steps.checking.verdicts import Verdict
from steps.data.rows.jsonl import read_json_lines, write_json_lines
from steps.data.rows.parquet import iter_rows, write_rows
from steps.data.rows.rows import PromptRow
from steps.data.rows.tables import PROMPTS, to_record
from steps.data.tokens.config import TokenizeConfig
from steps.data.tokens.token_tables import PAIR_TOKENS
from steps.evaluate_reward_model import BestOfConfig, evaluate_reward_model
from steps.generation.engine import Finish
from steps.judge_with_reward_model import judge_with_reward_model
from steps.kinds import Completions, Model, PairTokens, RewardModel, RewardScores
from steps.models.workplace import Left, Workplace
from steps.online.learning_from import experience_of
from steps.online.rollouts import Rollout, read_rollouts, write_rollouts
from steps.online.selection import Best
from steps.reward_models import reward_scores
from steps.reward_models.answer_scores import score_answers
from steps.reward_models.config import RewardConfig, RewardScoring
from steps.reward_models.model_rewards import ModelRewards
from steps.reward_models.reward_scores import score_pairs
from steps.score_completions import score_completions
from steps.score_with_reward_model import score_with_reward_model
from steps.select_demonstrations import select_demonstrations
from steps.sources import ModelSource, PreferenceData
from steps.train_dpo import train_dpo
from steps.train_reward_model import train_reward_model
from steps.training.config import OptimizerConfig
from steps.views import reward_evaluation

CONFIG = RewardConfig(batch_size=4, epochs=3, optimizer=OptimizerConfig(learning_rate=1e-2))


def artifact(path: Path) -> Any:
    return SimpleNamespace(path=path, digest="0" * 32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reward model with a tokenizer."""
    folder = tmp_path_factory.mktemp("reward")
    init = model_folder(folder / "init", lambda: llama(tied=False, layers=1))
    word_tokenizer().save_pretrained(init)
    made = Folder(folder / "model")
    tokens = artifact(token_files(folder / "tokens", PAIR_TOKENS, pair_records(8)))
    train_reward_model.function(made, tokens, artifact(init), CONFIG)
    return made.path


def completions(count: int = 5) -> list[dict[str, Any]]:
    return [
        {
            "row": f"q{i}",
            "prompt": [{"role": "user", "content": f"w{i} w{i + 1}"}],
            "answer": "w3",
            "tools": None,
            "template_kwargs": None,
            "completions": ["w3", f"w{i} w9", "w3", "w4"],
        }
        for i in range(count)
    ]


def test_kinds_are_told_apart_when_the_dag_is_built(tmp_path: Path) -> None:
    def adopted(name: str, kind: Any) -> Any:
        (tmp_path / name).mkdir()
        (tmp_path / name / "content").write_text(name)
        return adopt(str(tmp_path / name), kind)

    pairs, base = adopted("pairs", PairTokens), adopted("base", Model)
    reward = train_reward_model(pairs, base)
    assert reward.kind is RewardModel
    assert train_reward_model(pairs, reward).kind is RewardModel
    answered = adopted("completions", Completions)
    scores = score_with_reward_model(answered, reward)
    assert scores.kind is RewardScores
    assert evaluate_reward_model(score_with_reward_model(pairs, reward), scores).name == (
        "evaluate_reward_model"
    )
    with pytest.raises(TemperError, match=r"score_with_reward_model\(model\) takes RewardModel"):
        score_with_reward_model(pairs, base)
    with pytest.raises(TemperError, match=r"train_dpo\(policy\) takes Model"):
        train_dpo(pairs, reward, reward)


def test_from_pairs_and_completions_to_a_curve(model: Path, tmp_path: Path) -> None:
    texts = Folder(tmp_path / "texts")
    records = completions()
    for record in records:
        record["completions"] = [rf"\boxed{{{text}}}" for text in record["completions"]]
    write_json_lines(texts.path / "completions.jsonl", records)
    tokens = artifact(token_files(tmp_path / "tokens", PAIR_TOKENS, pair_records(6, seed=2)))
    of_pairs, of_texts = Folder(tmp_path / "pairs"), Folder(tmp_path / "answers")
    score: Any = score_with_reward_model.function
    evaluate: Any = evaluate_reward_model.function
    metrics = score(of_pairs, tokens, artifact(model))
    assert metrics["pairs"] == 6
    every = [s for line in read_json_lines(of_pairs.path / "scores.jsonl") for s in line["scores"]]
    assert metrics["mean_score"] == pytest.approx(sum(every) / 12)
    metrics = score(of_texts, artifact(texts.path), artifact(model))
    assert metrics["completions"] == 20
    assert metrics["completions_without_score"] == 0
    first = read_json_lines(of_pairs.path / "scores.jsonl")[0]
    assert first.keys() == {"row", "pair_id", "scores", "tokens"}

    out = Folder(tmp_path / "evaluation")
    both = artifact(of_pairs.path), artifact(of_texts.path)
    metrics = evaluate(out, *both, BestOfConfig(sizes=[1, 4]))
    assert metrics["best_of_4/checker"]["value"] == 1
    assert metrics["best_of_1/reward_model"]["value"] == 0.5
    assert metrics == json.loads((out.path / "metrics.json").read_text())
    points = read_json_lines(out.path / "best_of_n.jsonl")
    assert [point["n"] for point in points] == [1, 4]
    shown: Any = SimpleNamespace(records=lambda name: read_json_lines(out.path / name))
    measures, best, calibration = reward_evaluation(shown)
    assert isinstance(measures, Measures)
    explained = {measure.metric for measure in measures.measures}
    assert {name for name, value in metrics.items() if isinstance(value, dict)} <= explained
    assert isinstance(best, Curves)
    assert best.lines["checker"] == [(1, 0.5), (4, 1)]
    assert isinstance(calibration, Curves)
    assert calibration.title == "Calibration of the scores"
    for given, wanted in (
        (both[::-1], "pairs wants"),
        ((both[0],) * 2, "completions wants"),
    ):
        with pytest.raises(TemperError, match=wanted):
            evaluate(Folder(tmp_path / wanted), *given)
    with pytest.raises(ValueError, match=r"has 4 completions, too few for the best of 16"):
        evaluate(Folder(tmp_path / "few"), *both)


def test_completions_of_a_prompt_without_an_answer_are_neither_right_nor_wrong(
    tmp_path: Path,
) -> None:
    texts, pairs = Folder(tmp_path / "texts"), Folder(tmp_path / "pairs")
    records = [dict(r, scores=[1.0] * 4, finish=["stop"] * 4) for r in completions()]
    records[1]["answer"] = None
    for name in ("completions.jsonl", "scores.jsonl"):
        write_json_lines(texts.path / name, records)
    scores = {"row": "a", "pair_id": "b", "scores": [1.0, 0.0], "tokens": [2, 2]}
    write_json_lines(pairs.path / "scores.jsonl", [scores])
    for step, arguments in (
        (score_completions, (texts.path,)),
        (build_pairs, (texts.path,)),
        (evaluate_reward_model, (artifact(pairs.path), artifact(texts.path))),
    ):
        made: Any = step.function
        with pytest.raises(ValueError, match="row 'q1' has no answer"):
            made(Folder(tmp_path / step.name), *arguments)


def test_scores_are_rewards_of_whole_rollouts(model: Path, tmp_path: Path) -> None:
    recording, tokenizer = tmp_path / "drawn", word_tokenizer()
    recording.mkdir()
    tokenizer.save_pretrained(recording)
    rows = [PromptRow(r["row"], tuple(r["prompt"]), r["answer"]) for r in completions()]
    write_rows(recording / "prompts-00000.parquet", PROMPTS, map(to_record, rows))
    (recording / "engine.json").write_text("{}")

    def drawn(row: str, k: int, text: str, finish: Finish) -> Rollout:
        ids = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
        logps = (-1.0,) * len(ids)
        return Rollout(
            row, k, (5, 6), ids, (True,) * len(ids), logps, finish, "",
            rewards={"exact": 1.0}, verdict=Verdict.right,
        )  # fmt: skip

    rollouts = [
        drawn(record["row"], k, text, Finish.length if k == 2 else Finish.stop)
        for record in completions()
        for k, text in enumerate(record["completions"])
    ]
    write_rollouts(recording, rollouts)
    out = Folder(tmp_path / "judged")
    judge: Any = judge_with_reward_model.function
    metrics = judge(out, artifact(recording), artifact(model))
    assert (metrics["completions"], metrics["cut"]) == (15, 5)

    expected, _ = scored(model, tmp_path, completions())
    judged = list(read_rollouts(out.path))
    for rollout, (record, k) in zip(
        judged, ((r, k) for r in expected for k in range(4)), strict=True
    ):
        assert rollout.verdict is Verdict.right
        score = None if k == 2 else record["scores"][k]
        assert rollout.rewards == {"exact": 1.0, "reward_model": score}
        assert rollout.is_rewarded is (k != 2)  # a part of a sum is no reward
    chosen = Folder(tmp_path / "chosen")
    select: Any = select_demonstrations.function
    assert select(chosen, artifact(out.path), Best(least_reward=None))["demonstrations"] == 5
    best = {
        tuple(record["input_ids"]) for record in iter_rows(chosen.path / "tokens-00000.parquet")
    }
    highest = {
        (5, 6, *max((r for r in judged if r.row == row.row and not r.is_cut),
                    key=lambda r: r.reward).ids)
        for row in rows
    }  # fmt: skip
    assert best == highest
    again = Folder(tmp_path / "again")
    metrics = judge(again, artifact(out.path), artifact(model))
    assert list(read_rollouts(again.path)) == judged
    assert "20 completions had a reward named reward_model already" in metrics["notices"][0]
    assert "notices" not in judge(
        again, artifact(out.path), artifact(model), ModelRewards(name="b")
    )
    assert all(r.rewards["b"] == r.rewards["reward_model"] for r in read_rollouts(again.path))
    # What lacks a summand is not compared with sums: here it would often be the best.
    assert [r.k for r in judged if r.is_rewarded] == [0, 1, 3] * 5
    learnt = experience_of(judged, longest=8)
    assert [len(group.responses) for group in learnt.groups] == [3] * 5
    assert learnt.rewards.flatten().tolist() == [r.reward for r in judged if r.k != 2]

    write_rollouts(recording, [replace(rollout, finish=Finish.length) for rollout in rollouts])
    none = Folder(tmp_path / "none")
    metrics = judge(none, artifact(recording), artifact(model))
    assert metrics["cut"] == 20
    assert "every completion was cut" in metrics["notices"][0]
    assert not any(rollout.is_rewarded for rollout in read_rollouts(none.path))
    metrics = judge(none, artifact(recording), artifact(model), ModelRewards(of_cut=-1.0))
    assert metrics["mean_reward"] == -1
    assert "notices" not in metrics


def scored(
    model: Path, work: Path, records: list[dict[str, Any]], **settings: Any
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    tokenize = TokenizeConfig(**settings)
    place = Workplace(work / "out", work / "scratch")
    return score_answers(records, model, RewardScoring(), tokenize, place)


def test_equal_completions_have_equal_scores_whatever_is_beside_them(
    model: Path, tmp_path: Path
) -> None:
    together, _ = scored(model, tmp_path / "together", completions())
    for record in together:
        first, _, third, _ = record["scores"]
        assert first == third
    for number, record in enumerate(completions()):
        record["completions"] = record["completions"][::-1]
        ((alone,), _) = scored(model, tmp_path / f"alone-{number}", [record])
        assert alone["scores"] == together[number]["scores"][::-1]


@pytest.mark.parametrize("after_a_turn", ["", "w1 "])
def test_a_completion_is_scored_as_transformers_scores_the_chat_up_to_its_end_of_turn(
    model: Path, tmp_path: Path, after_a_turn: str
) -> None:
    """What a template writes after a turn, as the line break of ChatML, is not read."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text().replace("<end> ", f"<end> {after_a_turn}"))
    (record,), _ = scored(folder, tmp_path, completions(1))
    classifier = AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text, score in zip(record["completions"], record["scores"], strict=True):
        chat = [*record["prompt"], {"role": "assistant", "content": text}]
        written = tokenizer.apply_chat_template(chat, tokenize=False)
        assert written.endswith(f"<end> {after_a_turn}")
        up_to_its_end = written[: written.rindex("<end>") + len("<end>")]
        ids = tokenizer(up_to_its_end, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            assert classifier(input_ids=ids).logits.item() == pytest.approx(score, abs=1e-5)


def test_a_completion_over_a_limit_has_no_score(model: Path, tmp_path: Path) -> None:
    records = completions(2)
    records[1]["completions"][1] = " ".join(["w1"] * 30)
    found, metrics = scored(model, tmp_path, records, max_length=20)
    assert found[1]["scores"][1] is None
    assert None not in found[0]["scores"]
    assert metrics["completions_without_score"] == 1
    assert "a completion of row 'q1' has no score: the limits cut it" in metrics["notices"][0]


def test_scoring_that_is_interrupted_goes_on_from_what_is_kept(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, config = pair_records(7), RewardScoring(groups_per_shard=2)
    whole = score_pairs(records, model, config, Workplace(tmp_path / "o", tmp_path / "whole"))
    place = Workplace(tmp_path / "o", tmp_path / "left", stopping=leaving_at(2))
    with pytest.raises(Left, match="left after 4 of 7 examples"):
        score_pairs(records, model, config, place)
    shards = sorted((tmp_path / "left/shards").iterdir())
    assert [file.name for file in shards] == ["scores-00000.jsonl", "scores-00001.jsonl"]
    shards[1].write_text(shards[1].read_text()[:-20])  # torn

    counts: list[int] = []
    score: Callable[..., Any] = reward_scores.scores_by

    def counted(scorer: Any, groups: Any) -> Any:
        counts.append(len(groups))
        return score(scorer, groups)

    monkeypatch.setattr(reward_scores, "scores_by", counted)
    again = score_pairs(records, model, config, Workplace(tmp_path / "o", tmp_path / "left"))
    assert again == whole
    assert counts == [2, 2, 1]  # all but the first shard


SMALL = (
    "shape.hidden_size=48", "shape.feed_forward=96", "shape.layers=1",
    "train_problems=40", "test_problems=24", "sft.max_steps=80", "sft.batch_size=32",
    "sampling.num_completions=8", "trying.num_completions=8", "best_of.sizes=[1,2,4,8]",
    "reward.max_steps=4", "reward.batch_size=4",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a store in which the second experiment finds the reward model of the first."""
    return tmp_path_factory.mktemp("experiments")


@pytest.mark.parametrize(
    ("of_rows", "asked"),
    [("auto", "load_prompts"), ("hh_rlhf", "prompts_of_pairs"), ("prompt", "load_prompts")],
)
def test_a_policy_answers_the_prompts_of_pairs_that_have_no_column_of_them(
    tmp_path: Path, of_rows: str, asked: str
) -> None:
    """As those of Anthropic's HH: the name of their format says that they are pairs."""
    (tmp_path / "rows.jsonl").write_text("{}\n")
    model = ModelSource(hub="a/model", revision="0" * 40)
    config = rlhf.Config(
        data=PreferenceData(path=str(tmp_path / "rows.jsonl"), format=of_rows), model=model
    )
    before = rlhf.rlhf(config)["before"]
    answers = next(of.step for of in before.inputs if of.step.name == "sample_rollouts")
    assert asked in {of.step.name for of in answers.inputs}


def test_the_experiment_runs_from_nothing_to_a_curve(repository: Path, folder: Path) -> None:
    desk = Desk(repository, "reward_model", folder, SMALL)
    done = desk.run_here()
    for shown in ("pairs ranked right", "best of 8: reward model", "best of 8: checker"):
        assert shown in done.stdout
    assert "nothing to run" in desk.here().stdout
