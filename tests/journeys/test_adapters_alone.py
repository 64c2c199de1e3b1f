"""Adapters are stored alone, and whatever reads the model gets it whole, with the same bytes."""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from workers_here import instead_of_processes

from pipeline import Input, Metrics, Output, Step, TemperError, run, step
from pipeline.plan.planning import make_plan
from pipeline.show.artifact_handle import Made
from pipeline.store.wholes import whole_inputs
from steps.generation.config import SamplingConfig
from steps.init_model import LlamaShape, init_model
from steps.kinds import Model
from steps.make_arithmetic import make_arithmetic
from steps.models.config import LoraConfig
from steps.models.folders import load_model
from steps.sample_completions import sample_completions
from steps.sample_rollouts import sample_rollouts
from steps.score_completions import score_completions
from steps.scoring.scored_by import model_digest
from steps.select_model import select_snapshot
from steps.serving.named_models import opened
from steps.tokenize_conversations import tokenize_conversations
from steps.train_sft import train_sft
from steps.training.config import OptimizerConfig, TrainConfig

FAST = OptimizerConfig(learning_rate=3e-2)


@step
def copied(out: Output, model: Model) -> Metrics:
    """The files of a model as a step sees them."""
    shutil.copytree(model.path, out.path, dirs_exist_ok=True)
    return {"digest": model_digest(model.path)}


def sft(tokens: Input | Step, init: Step, **lora: Any) -> Step:
    every = {"max_steps": 2, "snapshot_every_steps": 1, "optimizer": FAST}
    return train_sft(tokens, init, TrainConfig(**every, lora=LoraConfig(r=2, **lora)))


def dag(**lora: Any) -> dict[str, Step]:
    """Adapters on a model, other adapters on the result, and what a step sees of both."""
    base = init_model(LlamaShape(hidden_size=32, layers=1, heads=2, feed_forward=32))
    task = make_arithmetic(train=30, test=4)
    tokens = tokenize_conversations(task["sft"], base)
    first = sft(tokens, base, **lora)
    second = sft(tokens, first, modules_to_save=["embed_tokens", "lm_head"], **lora)
    drawn = sample_rollouts(task["test"], second, SamplingConfig(max_new_tokens=4))
    every = {"base": base, "first": first, "second": second, "drawn": drawn}
    return every | {"of first": copied(first), "of second": copied(second)}


def files(made: Made) -> dict[str, bytes]:
    return {name: (made.path / name).read_bytes() for name in made.files}


@pytest.fixture(scope="module")
def here() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        instead_of_processes(patch)
        yield


@pytest.fixture(scope="module")
def store(here: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def alone(store: str) -> Mapping[str, Made]:
    return run(dag(), store=store)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [{}, {"dora": True, "rslora": True, "target_modules": ["q_proj"]}])
def test_steps_see_the_bytes_that_training_merged_would_have_written(
    store: str, lora: dict[str, Any]
) -> None:
    alone, merged = run(dag(**lora), store=store), run(dag(merged=True, **lora), store=store)
    for name in ("first", "second"):
        assert not any(n.endswith("model.safetensors") and "/" not in n for n in alone[name].files)
        assert alone[name].metrics == merged[name].metrics
        seen, written = files(alone[f"of {name}"]), files(merged[name])
        written = {n: data for n, data in written.items() if not n.startswith("step-")}
        described = json.loads(seen.pop("adapted.json"))
        assert seen.pop("adapter/excess.safetensors", None) is None or "dora" in lora
        if name == "first":
            assert described["base"] == alone["base"].digest
            assert seen == written
        else:  # the base of its adapters has another name, and the same bytes
            assert seen.pop("adapter/base.json") != written.pop("adapter/base.json")
            assert seen == written
    assert files(alone["drawn"])["prompts-00000.parquet"]


def test_commands_and_python_get_it_whole(store: str, alone: Mapping[str, Made]) -> None:
    written = files(alone["of second"])["model.safetensors"]
    with opened(alone["second"].name, store) as model:
        assert (model.folder / "model.safetensors").read_bytes() == written
    loaded, _ = alone["second"].load()
    assert sum(p.numel() for p in loaded.parameters()) > 7_000
    with pytest.raises(ValueError, match="adapters, and their base is another artifact"):
        load_model(alone["second"].path)


def test_a_base_that_was_evicted_is_made_again_before_what_reads_the_adapters(
    store: str, alone: Mapping[str, Made]
) -> None:
    base = alone["base"]
    base.store.evict(base.manifest)
    steps = dag()
    assert make_plan({"x": copied(steps["first"])}, base.store).is_complete
    other = sample_rollouts(
        make_arithmetic(train=30, test=4)["test"], steps["second"], SamplingConfig(max_new_tokens=3)
    )
    with pytest.raises(TemperError, match="rests on another artifact, whose data is gone"):
        alone["first"].load()
    made = run({"other": other}, store=store)
    assert made["other"].metrics
    alone["first"].load()


def test_the_best_snapshot_is_a_whole_model(store: str, alone: Mapping[str, Made]) -> None:
    task, first = make_arithmetic(train=30, test=4), dag()["first"]

    def judged(model: Step | Input) -> Step:
        drawn = sample_completions(task["test"], model, SamplingConfig(max_new_tokens=4))
        return score_completions(drawn)

    best = select_snapshot(first, [1], judged)
    made = run({"best": best, "seen": copied(first["step-1"])}, store=store)
    assert made["best"].metrics == {"chosen": "step-1", "exact_match": 0.0}  # the first of equals
    weights = "model.safetensors"
    assert files(made["best"])[weights] == files(made["seen"])[weights]
    assert files(made["best"])[weights] != files(alone["of first"])[weights]
    assert "adapted.json" not in made["best"].files


def test_adapters_without_their_base_among_the_inputs_are_refused(
    alone: Mapping[str, Made], tmp_path: Path
) -> None:
    adopted = Model(alone["first"].path, "adopt_files", "0" * 32)
    with (
        pytest.raises(TemperError, match=r"rests on the artifact .* adopt a whole one"),
        whole_inputs([adopted], tmp_path),
    ):
        pass
