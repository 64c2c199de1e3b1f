"""What the steps that ship with Temper need, by formula."""

import importlib
import json
import pkgutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import script
from estimated_steps import write_rows
from places import REPOSITORY
from tiny_models import model_folder

import steps
from pipeline.dag.canonical import resolve_reference
from pipeline.dag.step import StepFunction, as_input
from pipeline.estimate.machine import Hardware
from pipeline.estimate.needs import Call, Needs
from steps.evaluation.config import EvaluateConfig
from steps.generation.config import SamplingConfig
from steps.losses.with_reference.tdpo import Tdpo
from steps.models.config import ActivationCheckpointing, Dtype, LoraConfig, Quantization
from steps.online.config import RlConfig
from steps.step_needs import model_at, model_of, of_model
from steps.training.config import DpoConfig, OptimizerConfig

LLAMA = {
    "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336,
    "vocab_size": 128256, "num_attention_heads": 32, "num_key_value_heads": 8,
    "tie_word_embeddings": False,
}  # fmt: skip
ONE, EIGHT = (Hardware("NVIDIA H100 80GB HBM3", devices) for devices in (1, 8))
CPU = Hardware("CPU", threads=8)
PARAMETERS = 8_030_261_248
BFLOAT16 = DpoConfig(
    dtype=Dtype.bfloat16,
    tokens_per_forward=16384,
    batch_size=128,
    activation_checkpointing=ActivationCheckpointing.full,
)


def needs(
    config: Any,
    hardware: Hardware = CPU,
    metrics: Mapping[str, Any] = {},
    shape: Mapping[str, Any] = LLAMA,
    **more: object,
) -> Needs:
    """Of a step with Llama-3.1-8B and inputs with these metrics."""
    policy, rows = write_rows(1), write_rows(2)  # stand for the artifacts of a model and of rows

    def made(value: Any) -> Any:
        if (reference := as_input(value)) is None:
            return None
        is_model = reference.step.fingerprint == policy.fingerprint
        manifest: Any = SimpleNamespace(metrics=metrics, files_of=lambda part: {})
        text = json.dumps(shape).encode() if is_model else None
        return SimpleNamespace(read=lambda name: text, part=None, manifest=manifest)

    named = {"policy": policy, "tokens": rows, "config": config} | more
    given = {name: value for name, value in named.items() if value is not None}
    return of_model(Call(given, hardware, made, lambda value: None))


def functions() -> list[StepFunction]:
    names = [m.name for m in pkgutil.iter_modules(steps.__path__) if not m.ispkg]
    modules = [importlib.import_module(f"steps.{name}") for name in names]
    found = (value for module in modules for value in vars(module).values())
    return list({f.reference: f for f in found if isinstance(f, StepFunction)}.values())


def test_what_steps_declare_exists_and_imports_no_large_library() -> None:
    named = {function.estimate for function in functions() if function.estimate}
    assert len(named) > 3
    assert all(callable(resolve_reference(reference)) for reference in named)
    code = (
        "import sys, steps.step_needs;"
        "print(sorted({'torch', 'transformers', 'datasets', 'pyarrow'} & set(sys.modules)))"
    )
    command, path = [sys.executable, "-c", code], {"PYTHONPATH": ":".join(sys.path)}
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=path)
    assert told.stdout.strip() == "[]"


def test_parameters_are_counted_from_a_config_and_experts_from_the_files(tmp_path: Path) -> None:
    found = model_of(LLAMA)
    assert found is not None
    assert found.parameters == PARAMETERS
    experts = {**LLAMA, "num_local_experts": 8, "dtype": "bfloat16"}
    assert model_of(experts) is None
    counted = model_of(experts, weights=2 * 46.7e9)
    assert counted is not None
    assert counted.parameters == pytest.approx(46.7e9)
    from transformers import AutoModelForCausalLM

    folder = model_folder(tmp_path / "model")
    small = model_at(folder)
    assert small is not None
    assert small.parameters == AutoModelForCausalLM.from_pretrained(folder).num_parameters()


def memory(config: Any, hardware: Hardware = ONE, **more: Any) -> float:
    found = needs(config, hardware, **more).memory
    assert found is not None
    return found


def test_what_eight_gpus_need_is_said_before_anyone_rents_them() -> None:
    assert memory(BFLOAT16, EIGHT) < 80e9 < memory(BFLOAT16, ONE)
    assert memory(BFLOAT16, Hardware("", 8)) == memory(BFLOAT16, EIGHT)
    found = needs(BFLOAT16, EIGHT)
    assert found.disk == pytest.approx(16.1e9, rel=0.01)
    assert found.capacity == 80e9
    assert found.scratch == pytest.approx(2 * (2 + 4 + 4 + 4) * PARAMETERS)
    whole = replace(BFLOAT16, gather_once=True)  # all weights and gradients, in the backward
    small, large = (replace(EIGHT, memory=size * 2**30) for size in (80, 500))
    assert memory(whole, small) > memory(BFLOAT16, small) + 40e9
    assert memory(BFLOAT16, large) == memory(whole, large)  # as the trainer then decides


def test_settings_that_save_memory_need_less() -> None:
    plain = memory(BFLOAT16)
    adapted = memory(replace(BFLOAT16, lora=LoraConfig(r=8)))
    rounded = memory(replace(BFLOAT16, lora=LoraConfig(r=8, quantization=Quantization.nf4)))
    assert 2 * adapted < plain
    assert rounded < adapted - 9e9
    assert memory(replace(BFLOAT16, optimizer=OptimizerConfig(eight_bit=True))) < 0.8 * plain
    kept = [
        memory(replace(BFLOAT16, activation_checkpointing=how)) for how in ActivationCheckpointing
    ]
    assert kept == sorted(kept, reverse=True)
    beside = memory(replace(BFLOAT16, loss=Tdpo())) - plain
    assert beside == pytest.approx(2 * PARAMETERS)  # the reference is a second model
    copies = [memory(RlConfig(lag=lag), CPU, prompts=write_rows(3)) for lag in (0, 2)]
    assert copies[1] - copies[0] == pytest.approx(2 * 4 * PARAMETERS)


ROWS = {"train": 60_000, "lengths": {"prompt": {"mean": 200.0}, "chosen": {"mean": 300.0}}}


@pytest.mark.parametrize(
    ("config", "more", "tokens"),
    [
        (DpoConfig(batch_size=8, epochs=2), {}, 120_000 * 500),
        (DpoConfig(batch_size=8, max_steps=5), {}, 40 * 500),
        (EvaluateConfig(sample_prompts=10), {}, 60_000 * 500 + 10 * 64),
        (SamplingConfig(7, 1.0, 3), {"tokens": None, "prompts": write_rows(2),
                                                "dtype": Dtype.float32}, 180_000 * 7),
        (RlConfig(prompts=64, completions=8, max_new_tokens=10),
         {"tokens": None, "prompts": write_rows(2), "iterations": 9}, 9 * 64 * 8 * 10),
    ],
    ids=["epochs", "steps", "evaluation", "sampling", "online"],
)  # fmt: skip
def test_work_is_tokens_times_parameters(config: Any, more: dict[str, Any], tokens: float) -> None:
    work = needs(config, metrics=ROWS, **more).work
    assert work["tokens × parameters"] == pytest.approx(tokens * PARAMETERS)
    if "tokens" not in more:  # steps are known without their rows
        unknown = needs(config).work
        assert unknown == ({"rows": 40} if getattr(config, "max_steps", None) else {})


@pytest.mark.parametrize(
    ("name", "options"), [("dpo_ultrafeedback", ["scale=smoke"]), ("grpo_tools", [])]
)
def test_the_first_plan_of_an_experiment_says_memory_and_disk(
    tmp_path: Path, name: str, options: list[str]
) -> None:
    path = REPOSITORY / "experiments" / f"{name}.py"
    planned = script(path, f"store={tmp_path}", "--plan", *options)
    assert planned.status == 0, planned.err
    lines = [line for line in planned.out.splitlines() if " train_" in line]
    assert lines
    assert all("MB" in line or "GB" in line for line in lines)
    assert "unknown (never run on such hardware), " in planned.out.splitlines()[-1]
