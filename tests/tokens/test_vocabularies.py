"""A model reads only the ids of a tokenizer that means the same by them as its own."""

import inspect
import json
import random
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest
from chat_families import families
from step_output import Folder
from tiny_models import model_folder, pair_records, token_files, unpaired_records, word_tokenizer
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import steps
from pipeline import Artifact
from pipeline.dag.step import StepFunction
from steps.data.rows.parquet import write_rows
from steps.data.tokens.encoding import encoder
from steps.data.tokens.token_tables import COMPLETION_TOKENS, CONVERSATION_TOKENS, PAIR_TOKENS
from steps.data.vocabularies import (
    require_tokens_of,
    save_template,
)
from steps.kinds import Model, RewardModel, TeacherLogps, Tokens, UnpairedTokens
from steps.models.workplace import Workplace
from steps.online.config import RlConfig
from steps.online.methods.distill import Distill
from steps.train_on_rollouts import train_on_rollouts

MEANING = "come from another tokenizer than the model's"


def other_tokenizer(*swapped: tuple[str, str], without: str = "") -> PreTrainedTokenizerFast:
    """The word tokenizer, in which some tokens have changed places and one may be missing."""
    core = word_tokenizer().backend_tokenizer
    described = json.loads(core.to_str())
    words = described["model"]["vocab"]
    for one, other in swapped:
        words[one], words[other] = words[other], words[one]
    words.pop(without, None)
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(described)), eos_token="<end>"
    )


def tokens_by(tokenizer: PreTrainedTokenizerFast, folder: Path, single: bool = False) -> Path:
    """Token files of pairs or of single responses, with the tokenizer that "made" them."""
    records = pair_records(4)
    if single:
        token_files(folder, COMPLETION_TOKENS, unpaired_records(records))
    else:
        token_files(folder, PAIR_TOKENS, records)
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = model_folder(tmp_path / "model")
    word_tokenizer().save_pretrained(folder)
    return folder


def used() -> set[int]:
    parts = ("prompt", "chosen", "rejected")
    ids = (record[f"{part}_ids"] for record in pair_records(4) for part in parts)
    return {i for some in ids for i in some}


# --- the steps ------------------------------------------------------------------------------------


def kinds_of(parameter: inspect.Parameter) -> list[type]:
    named = get_args(parameter.annotation) or (parameter.annotation,)
    return [kind for kind in named if isinstance(kind, type)]


def takes(parameter: inspect.Parameter, *kinds: type) -> bool:
    return any(issubclass(kind, kinds) for kind in kinds_of(parameter))


def step_of(name: str) -> StepFunction | None:
    """The step in a file, if it takes both tokens and a model."""
    function = getattr(import_module(f"steps.{name}"), name, None)
    if not isinstance(function, StepFunction):
        return None
    parameters = inspect.signature(function.function, eval_str=True).parameters.values()
    both = ((Tokens,), (Model, RewardModel))
    return function if all(any(takes(p, *k) for p in parameters) for k in both) else None


# Only these can be such steps, and importing all would take seconds in every process of the tests.
NAMES = [
    file.stem
    for file in sorted(Path(steps.__path__[0]).glob("*.py"))
    if "Tokens" in (text := file.read_text()) and "Model" in text and "@step(" in text
]


def test_the_steps_that_read_tokens_are_found() -> None:
    assert {"train_dpo", "train_sft", "reference_logprobs", "evaluate"} <= {*NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_no_step_reads_tokens_that_mean_something_else_to_its_model(
    name: str, model: Path, tmp_path: Path
) -> None:
    if (step := step_of(name)) is None:
        pytest.skip("no step that takes tokens and a model")
    if name == "score_influence":
        pytest.importorskip("jax")
    arguments: dict[str, Any] = {}
    parameters = inspect.signature(step.function, eval_str=True).parameters
    for parameter in list(parameters.values())[1:]:
        if takes(parameter, Tokens):
            single = takes(parameter, UnpairedTokens) and len(kinds_of(parameter)) == 1
            folder = tmp_path / f"tokens-{single}"
            folder = tokens_by(other_tokenizer(("w1", "w2")), folder, single)
            arguments[parameter.name] = Artifact(folder, "", "")
        elif takes(parameter, Artifact) and not takes(parameter, TeacherLogps):
            arguments[parameter.name] = Artifact(model, "", "")
    if name == "train_online":
        learning = RlConfig(method=Distill(beta=0.5, on_policy=0.5))
        arguments |= {"iterations": 1, "checker": None, "config": learning}
        del arguments["start"], arguments["reference"]
    with pytest.raises(ValueError, match=MEANING):
        step.function(Folder(tmp_path / "out"), **arguments)


# --- what differs ---------------------------------------------------------------------------------


def test_tokenizers_may_differ_in_what_does_not_occur(model: Path, tmp_path: Path) -> None:
    one, other, *_ = unused = [i for i in range(4, 64) if i not in used()]
    tokenizer = other_tokenizer((f"w{one - 4}", f"w{other - 4}"))
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    require_tokens_of(model, tokens := tokens_by(tokenizer, tmp_path / "tokens"))
    row = {"row": "r", "input_ids": unused, "mask": [True] * len(unused), "length": len(unused)}
    write_rows(tokens / "tokens-00001.parquet", CONVERSATION_TOKENS, [row])  # beside the pairs
    with pytest.raises(ValueError, match=MEANING):
        require_tokens_of(model, tokens)


def test_tokens_that_another_file_of_the_model_adds_are_known(model: Path, tmp_path: Path) -> None:
    """Old folders name added tokens outside of tokenizer.json."""
    last = max(used())
    tokens = tokens_by(word_tokenizer(), tmp_path / "tokens")
    file = model / "tokenizer.json"
    described = json.loads(file.read_text())
    del described["model"]["vocab"][f"w{last - 4}"]
    file.write_text(json.dumps(described))
    added = {str(last): {"content": f"w{last - 4}", "special": False, "normalized": False}}
    config = json.loads((model / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {**config.get("added_tokens_decoder", {}), **added}
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    require_tokens_of(model, tokens)


# --- the chat template ----------------------------------------------------------------------------

TRAINING = {
    "train_sft": "training.recipes.run_sft",
    "train_dpo": "training.recipes.run_dpo",
    "train_kto": "training.recipes.run_kto",
    "train_reference_free": "training.recipes.run_reference_free",
    "train_reward_model": "reward_models.reward_training.run_reward_training",
}


def chat_template_of(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder).chat_template


@pytest.mark.parametrize("name", TRAINING)
def test_a_trained_model_has_the_chat_template_that_wrote_its_tokens(
    name: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be asked by another than it was trained on, silently."""

    def trained(init: Path, *given: Any) -> dict[str, Any]:
        place = next(one for one in given if isinstance(one, Workplace))
        shutil.copytree(init, place.output, dirs_exist_ok=True)
        return {"steps": 1}

    monkeypatch.setattr(f"steps.{TRAINING[name]}", trained)
    tokens = tokens_by(word_tokenizer(), tmp_path / "tokens", single=name == "train_kto")
    step = step_of(name)
    assert step is not None
    taken = inspect.signature(step.function, eval_str=True).parameters.values()
    first = [p for p in taken if takes(p, Artifact) and p.default is p.empty]
    given = [tokens if takes(p, Tokens) else model for p in first]
    given = [Artifact(folder, "", "") for folder in given]

    def metrics_and_template(out: Path) -> tuple[list[str], Any]:
        return (step.function(Folder(out), *given) or {}).get("notices", []), chat_template_of(out)

    tokenizer = word_tokenizer()
    own = tokenizer.chat_template
    save_template(tokenizer, tokens)
    assert metrics_and_template(tmp_path / "same") == ([], own)
    tokenizer.chat_template = "{{ messages[-1].content }}"
    save_template(tokenizer, tokens)
    notices, template = metrics_and_template(tmp_path / "other")
    assert "the chat template that wrote its tokens" in notices[0]
    assert template == tokenizer.chat_template


def test_a_model_trained_on_rollouts_has_the_chat_template_that_wrote_their_prompts(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(start: Any, config: Any, rollouts: Path, place: Workplace) -> dict[str, Any]:
        shutil.copytree(start.policy, place.output / "model")
        return {}

    monkeypatch.setattr("steps.online.online_run.run_replay", trained)
    (tokenizer := word_tokenizer()).chat_template = "{{ messages[-1].content }}"
    save_template(tokenizer, tmp_path)
    rollouts, policy = (Artifact(folder, "", "") for folder in (tmp_path, model))
    metrics = train_on_rollouts.function(out := Folder(tmp_path / "out"), rollouts, policy)
    assert "the chat template that wrote its tokens" in (metrics or {})["notices"][0]
    assert chat_template_of(out.path / "model") == tokenizer.chat_template


TEXTS = (
    "Yes.", "Is it so?", " and so on ", "two\n\nlines", "\u3000wide\u00a0", "</think>\n\nYes.",
    "<think>no</think>yes", "a<|im_end|>b", "<|im_end", "|>", "TemperOutline0x", "Slot0x1c1x", "",
    " ", "東京 é ½", "'s", "{{ x }}", "<s>", "[INST]", "user", "tool_call", "\x1c", "\u200b",
)  # fmt: skip


@pytest.mark.parametrize("name", ["chatml", "llama3"])  # GPT-2's pattern, and Llama 3's
def test_words_have_the_ids_that_they_have_in_the_text(name: str) -> None:
    tokens = encoder(families()[name].tokenizer)
    assert tokens._words is not None
    drawn = random.Random(0)
    parts = (
        *TEXTS, " ", "  ", "\n", " \n ", "\t", "\r\n", "\x85", "\u2028", "a", "1", ".", "\u0301",
        "don't", "f(x_1)", "<b", "'", "23", "\u037e", "\u0338",
    )  # fmt: skip
    texts = ["".join(drawn.choices(parts, k=9)) for _ in range(2000)]
    assert tokens._words.ids(texts) == tokens.whole_ids(texts)
