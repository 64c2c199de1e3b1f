"""A call of each shipped step on tiny inputs, and of each shipped loss over pairs."""

import json
import random
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from byte_model import write_byte_model
from safetensors.numpy import load_file, save_file
from shipped_losses import shipped_losses

from pipeline import File, Metrics, Output, Step, step
from steps.add_privilege import add_privilege
from steps.answer_benchmark import answer_benchmark
from steps.benchmarks.config import AnsweringConfig
from steps.benchmarks.questions import given, with_ids, written
from steps.build_pairs import PairConfig, build_pairs
from steps.check_export import check_export
from steps.checking.compared import Compared, PairJudge
from steps.checking.verdicts import Judgement, judged
from steps.compare_completions import compare_completions
from steps.compare_distributions import compare_distributions
from steps.data.load.config import LoadConfig
from steps.data.rows.jsonl import write_json_lines
from steps.data.rows.parquet import iter_rows
from steps.data.tokens.config import TextConfig, TokenizeConfig
from steps.decontaminate import (
    decontaminate,
    decontaminate_conversations,
    decontaminate_prompts,
    decontaminate_texts,
    decontaminate_unpaired,
)
from steps.evaluate import evaluate
from steps.evaluate_reward_model import evaluate_reward_model
from steps.evaluation.config import EvaluateConfig, KlConfig
from steps.export.card import ModelCard
from steps.export.config import ExportCheckConfig
from steps.export_gguf import export_gguf
from steps.export_hf import export_hf
from steps.filter_pairs import FilterConfig, filter_pairs
from steps.functional_backend.functional_choice import FunctionalTraining
from steps.generation.config import SamplingConfig
from steps.generation.engine import Finish
from steps.import_model import import_model
from steps.init_model import LlamaShape, init_model
from steps.jax_backend.config import JaxScoring
from steps.judge import judge
from steps.judge_with_reward_model import judge_with_reward_model
from steps.kinds import Completions, Influences, Judged, PairTokens, Questions, Rollouts
from steps.load_conversations import load_conversations
from steps.load_preferences import load_preferences
from steps.load_prompts import load_prompts
from steps.load_texts import load_texts
from steps.load_unpaired import load_unpaired
from steps.losses.base import ReferenceFreeLoss
from steps.make_arithmetic import make_arithmetic
from steps.make_sums import make_sums
from steps.measure_kl import measure_kl
from steps.merge_models import merge_models
from steps.models.config import LoraConfig
from steps.online.config import RlConfig
from steps.online.rollouts import read_rollouts, write_rollouts
from steps.online.selection import Best
from steps.prompts_of_pairs import prompts_of_pairs
from steps.reference_logprobs import reference_logprobs
from steps.reward_models.config import RewardConfig
from steps.reward_models.model_rewards import ModelRewards
from steps.sample_completions import sample_completions
from steps.sample_rollouts import sample_rollouts
from steps.score_completions import score_completions
from steps.score_influence import score_influence
from steps.score_with_reward_model import score_with_reward_model
from steps.scoring.config import ReferenceConfig
from steps.select_answers import select_answers
from steps.select_demonstrations import select_demonstrations
from steps.select_model import select_model
from steps.select_pairs import select_pairs
from steps.select_rows import SelectionConfig, select_rows
from steps.teacher_logprobs import teacher_logprobs
from steps.tokenize_conversations import tokenize_conversations
from steps.tokenize_preferences import tokenize_preferences
from steps.tokenize_texts import tokenize_texts
from steps.tokenize_unpaired import tokenize_unpaired
from steps.train_dpo import train_dpo
from steps.train_kto import train_kto
from steps.train_on_rollouts import train_on_rollouts
from steps.train_online import train_online
from steps.train_online_with_reward_model import train_online_with_reward_model
from steps.train_reference_free import train_reference_free
from steps.train_reward_model import train_reward_model
from steps.train_sft import train_sft
from steps.training.config import (
    DpoConfig,
    KtoConfig,
    OptimizerConfig,
    ReferenceFreeConfig,
    Schedule,
    TrainConfig,
)
from steps.unpair import unpair

MERGED = LoraConfig(r=2, merged=True)  # adapters alone name the digest of their base
NOT_CALLED = {
    "ask_benchmark": "its output is that of the suite, in the version that is installed",
    "fetch_benchmark": "it needs the Hub",
    "score_benchmark": "as ask_benchmark",
    "report": "shows times and machines",
    "synthesize": "its output is that of a server",
}
"""Shipped steps without a call, and why."""

EAGER = OptimizerConfig(learning_rate=1e-2, schedule=Schedule.constant)
SHORT = TokenizeConfig(max_length=64, max_prompt_length=48)
GREEDY = SamplingConfig(max_new_tokens=8)
DRAWN = SamplingConfig(max_new_tokens=8, temperature=1.0, num_completions=4)


@dataclass(frozen=True)
class Longer(PairJudge):
    name: ClassVar[str] = "longer"

    def check(self, compared: Compared) -> Judgement:
        return judged(len(compared.first) > len(compared.second))


@step(makes=Completions)
def say(out: Output, texts: list[str]) -> Metrics:
    """The same answers to each of two questions."""
    records = [
        {
            "row": f"r{number}",
            "prompt": [{"role": "user", "content": f"What is {number} + 1?"}],
            "answer": str(number + 1),
            "completions": texts,
            "finish": ["stop"] * len(texts),
        }
        for number in (1, 2)
    ]
    write_json_lines(out.path / "completions.jsonl", records)
    return {}


@step(makes=Questions)
def wonder(out: Output) -> Metrics:
    """One question of each kind."""
    prompt = {"messages": [{"role": "user", "content": "Say 3"}], "open": True}
    asked = [written(prompt, {"stop": ["!"]}), given("2 + 1 =", " 3"), given(None, "It is 3.")]
    write_json_lines(out.path / "questions.jsonl", with_ids(asked))
    return {}


@step(makes=Judged)
def end(out: Output, rollouts: Rollouts) -> Metrics:
    """The rollouts as if each had ended; a later one of a prompt is better."""
    shutil.copytree(rollouts.path, out.path, dirs_exist_ok=True)
    ended = (
        replace(drawn, finish=Finish.stop, rewards={"later": float(drawn.k)})
        for drawn in read_rollouts(rollouts.path)
    )
    write_rollouts(out.path, list(ended))
    return {}


@step(makes=Influences)
def alternate(out: Output, tokens: PairTokens) -> Metrics:
    """Of each second pair, a bad influence."""
    found = [
        {"row": record["row"], "pair": record["pair_id"], "influence": (-1.0) ** number}
        for number, record in enumerate(iter_rows(tokens.path))
    ]
    write_json_lines(out.path / "influences.jsonl", found)
    return {}


def write_inputs(folder: Path) -> None:
    """Rows of every kind, and a model whose weights are the same on every machine."""
    numbers = range(1, 13)
    pairs = [
        {"prompt": f"What is {n} + 1?", "chosen": f"It is {n + 1}.", "rejected": "I do not " * n}
        for n in numbers
    ]
    rows = {
        "pairs": pairs,
        "labelled": [
            {"prompt": f"Say {n}", "completion": f"{n}!", "label": n % 3 > 0} for n in numbers
        ],
        "demonstrations": [{"prompt": f"Say {n}", "completion": f"{n}!"} for n in numbers],
        "questions": [{"prompt": f"What is {n} + 1?", "answer": f"{n + 1}"} for n in numbers],
        "texts": [{"text": f"One more than {n} is {n + 1}. " * n} for n in numbers],
        "known": [{"prompt": "What is 3 + 1?", "chosen": "4", "rejected": "nothing"}],
    }
    for name, records in rows.items():
        write_json_lines(folder / f"{name}.jsonl", records)
    weights = load_file(write_byte_model(folder / "model") / "model.safetensors")
    draw = random.Random(0)
    for name, values in sorted(weights.items()):
        if values.ndim == 2:
            drawn = [draw.getrandbits(10) / 2048 - 0.25 for _ in range(values.size)]
            weights[name] = np.array(drawn, np.float32).reshape(values.shape)
    save_file(weights, folder / "model/model.safetensors", {"format": "pt"})
    shutil.copytree(folder / "model", folder / "merging")
    tokenizer = json.loads((file := folder / "merging/tokenizer.json").read_text("utf-8"))
    tokenizer["model"]["vocab"]["ab"] = tokenizer["model"]["vocab"].pop("\u00ff")
    tokenizer["model"]["merges"] = [["a", "b"]]
    file.write_text(json.dumps(tokenizer), "utf-8")


def calls_of_all_steps(data: Path) -> dict[str, Step]:
    """A call of each step by its module; after a space, what else is special about a call.

    Args:
        data: what :func:`write_inputs` wrote.
    """

    def rows(name: str) -> File:
        return File(str(data / f"{name}.jsonl"))

    split = LoadConfig(test_fraction=0.25)
    base = import_model(File(str(data / "model")))
    pairs = load_preferences(rows("pairs"), config=split)
    known = load_preferences(rows("known"), config=LoadConfig())
    conversations = load_conversations(rows("demonstrations"), config=split)
    texts = load_texts(rows("texts"), config=split)
    unpaired = load_unpaired(rows("labelled"), config=split)
    prompts = load_prompts(rows("questions"), config=split)
    tokens = tokenize_preferences(pairs, base, SHORT)
    shown = tokenize_conversations(conversations["train"], base, SHORT)
    labelled = tokenize_unpaired(unpaired, base, SHORT)
    train, test = tokens["train"], tokens["test"]
    settings: dict[str, Any] = {"optimizer": EAGER, "batch_size": 3}
    reference = reference_logprobs(train, base)
    dpo = train_dpo(train, base, reference, DpoConfig(**settings))
    sft = train_sft(shown, base, TrainConfig(**settings))
    reward = train_reward_model(train, base, RewardConfig(**settings))
    said = say(["\\boxed{2}", "It is \\boxed{3}", "no idea"])
    scores = score_completions(said)
    drawn = sample_rollouts(prompts["train"], base, DRAWN)
    by_model = judge_with_reward_model(drawn, reward, ModelRewards(of_cut=-1.0))
    online: dict[str, Any] = {"prompts": 2, "completions": 4, "max_new_tokens": 8}
    rl = RlConfig(optimizer=EAGER, **online)
    asked = EvaluateConfig(sample_prompts=2, sampling=GREEDY)
    before = evaluate(test, base, asked)
    after = evaluate(test, dpo, asked, before)
    exported = export_hf(dpo, after, ModelCard("tiny", "base", "pairs"), before=before)
    return {
        "add_privilege": add_privilege(by_model, base),
        "answer_benchmark": answer_benchmark(wonder(), base, AnsweringConfig(max_new_tokens=8)),
        "build_pairs": build_pairs(said, PairConfig()),
        "check_export": check_export(dpo, exported, ExportCheckConfig()),
        "compare_completions": compare_completions(said, say(["2", "three", "no idea"]), Longer()),
        "compare_distributions": compare_distributions(
            teacher_logprobs(shown, sft), teacher_logprobs(shown, base)
        ),
        "decontaminate": decontaminate(pairs, known, 4),
        "decontaminate conversations": decontaminate_conversations(conversations, known, 4),
        "decontaminate prompts": decontaminate_prompts(prompts, known, 4),
        "decontaminate unpaired": decontaminate_unpaired(unpaired, known, 4),
        "decontaminate texts": decontaminate_texts(texts, known, 4),
        "evaluate": after,
        "evaluate_reward_model": evaluate_reward_model(score_with_reward_model(test, reward)),
        "export_gguf": export_gguf(import_model(File(str(data / "merging"))), title="tiny"),
        "export_hf": exported,
        "filter_pairs": filter_pairs(pairs, FilterConfig(max_length_ratio=4.0)),
        "import_model": base,
        "init_model": init_model(LlamaShape(16, 1, 2, 32)),
        "judge": judge(end(drawn)),
        "judge_with_reward_model": by_model,
        "load_conversations": conversations,
        "load_preferences": pairs,
        "load_prompts": prompts,
        "load_texts": texts,
        "load_unpaired": unpaired,
        "make_arithmetic": make_arithmetic(6, 3),
        "make_sums": make_sums(6, 3),
        "measure_kl": measure_kl(test, dpo, base, KlConfig(2, DRAWN)),
        "merge_models": merge_models([dpo, sft]),
        "prompts_of_pairs": prompts_of_pairs(pairs),
        "reference_logprobs": reference,
        "reference_logprobs jax": reference_logprobs(
            train, base, ReferenceConfig(backend=JaxScoring())
        ),
        "sample_completions": sample_completions(prompts["train"], base, GREEDY),
        "sample_rollouts": drawn,
        "score_completions": scores,
        "score_influence": score_influence(train, test, base),
        "score_with_reward_model": score_with_reward_model(said, reward, tokenize=SHORT),
        "select_answers": select_answers(said, per_prompt=None),
        "select_demonstrations": select_demonstrations(by_model, Best(least_reward=None)),
        "select_pairs": select_pairs(end(drawn)),
        "select_model": select_model({"a": sft, "b": dpo}, {"a": scores, "b": scores}),
        "select_rows": select_rows(train, alternate(train), SelectionConfig(drop_share=0.3)),
        "teacher_logprobs": teacher_logprobs(shown, base),
        "tokenize_conversations": shown,
        "tokenize_preferences": tokens,
        "tokenize_texts": tokenize_texts(texts["train"], base, TextConfig(64)),
        "tokenize_unpaired": labelled,
        "train_dpo": dpo,
        "train_kto": train_kto(
            labelled["train"],
            base,
            reference_logprobs(labelled["train"], base),
            KtoConfig(**settings),
        ),
        "train_on_rollouts": train_on_rollouts(by_model, base, rl),
        "train_online": train_online(prompts["train"], base, 1, config=rl),
        "train_online_with_reward_model": train_online_with_reward_model(
            prompts["train"], base, reward, 1, rl, ModelRewards(of_cut=-1.0)
        ),
        "train_reference_free": train_reference_free(train, base, ReferenceFreeConfig(**settings)),
        "train_reward_model": reward,
        "train_sft": sft,
        "train_sft functional": train_sft(
            shown, base, TrainConfig(backend=FunctionalTraining(), **settings)
        ),
        "train_sft lora": train_sft(shown, base, TrainConfig(lora=MERGED, **settings)),
        "unpair": unpair(pairs),
    }


def calls_of_all_losses(data: Path) -> dict[str, Step]:
    """Training with each loss over pairs that needs no settings, as `calls_of_all_steps`."""
    base = import_model(File(str(data / "model")))
    pairs = load_preferences(File(str(data / "pairs.jsonl")), config=LoadConfig(test_fraction=0.25))
    train = tokenize_preferences(pairs, base, SHORT)["train"]
    reference = reference_logprobs(train, base)
    found: dict[str, Step] = {}
    for name, make in shipped_losses().items():
        if name.startswith("combined"):  # takes other losses
            continue
        settings: dict[str, Any] = {"loss": make(), "optimizer": EAGER, "batch_size": 5}
        if issubclass(make, ReferenceFreeLoss):
            config = ReferenceFreeConfig(**settings)
            found[f"train_reference_free {name}"] = train_reference_free(train, base, config)
        else:
            config = DpoConfig(**settings)
            found[f"train_dpo {name}"] = train_dpo(train, base, reference, config)
    return found
