"""What is foreseen of the steps that ship with Temper."""

import importlib
import json
import pkgutil
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import script
from places import REPOSITORY
from priced_steps import write_rows
from tiny_models import llama, model_folder

import steps
from pipeline import File
from pipeline.dag.canonical import resolve_reference
from pipeline.dag.step import StepFunction
from pipeline.price.estimator import Call, Estimator, Foreseen, Hardware, Made, Sizes
from steps.evaluation.config import EvaluateConfig
from steps.losses.base import ReferenceLoss
from steps.losses.dpo import Dpo
from steps.losses.with_reference.tdpo import Tdpo
from steps.models.config import ActivationCheckpointing, Dtype, LoraConfig
from steps.online.config import RlConfig
from steps.online.rewarding.judging import count_verdicts
from steps.prices import (
    model_sizes,
    of_generation,
    of_online,
    of_rows,
    of_training,
    row_sizes,
)
from steps.reward_models.model_rewards import ModelRewards
from steps.training.config import DpoConfig

LLAMA = {
    "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336,
    "vocab_size": 128256, "num_attention_heads": 32, "num_key_value_heads": 8,
    "tie_word_embeddings": False,
}  # fmt: skip
PAIRS = {"rows": 60000, "prompt": 206.0, "chosen": 292.0, "rejected": 258.0}


def functions() -> list[StepFunction]:
    names = [m.name for m in pkgutil.iter_modules(steps.__path__) if not m.ispkg]
    modules = [importlib.import_module(f"steps.{name}") for name in names]
    found = (value for module in modules for value in vars(module).values())
    return list({f.reference: f for f in found if isinstance(f, StepFunction)}.values())


def test_what_steps_name_as_their_estimators_are_some() -> None:
    named = [function.estimate for function in functions() if function.estimate]
    assert len(named) > 10
    for reference in named:
        assert isinstance(resolve_reference(reference), Estimator)


def test_a_plan_is_priced_without_torch_or_transformers() -> None:
    code = (
        "import sys; from pipeline.price.pricing import _named;"
        "[_named(f'steps.prices.{n}') for n in ('of_models:IMPORTED', 'of_rows:LOADED',"
        " 'of_training:PREFERENCE', 'of_generation:EVALUATED', 'of_online:ONLINE')];"
        "print(sorted({'torch', 'transformers', 'datasets', 'pyarrow'} & set(sys.modules)))"
    )
    path = {"PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=path)
    assert told.stdout.strip() == "[]"


def test_parameters_are_counted_from_a_config() -> None:
    assert model_sizes.of_config(LLAMA)["parameters"] == 8_030_261_248  # Llama 3.1 8B


MIXTRAL = {**LLAMA, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2}
GLM = {
    **LLAMA, "vocab_size": 151552, "num_hidden_layers": 6, "num_attention_heads": 96,
    "intermediate_size": 10944, "moe_intermediate_size": 1408,
    "n_routed_experts": 128, "num_experts_per_tok": 8, "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "expected", "read"),
    [(MIXTRAL, 46_702_792_704, 12.9e9), (GLM, 12_752_834_560, 2.37e9)],  # as transformers makes it
)
def test_experts_are_counted_and_a_token_reads_those_that_it_chooses(
    config: dict[str, Any], expected: float, read: float
) -> None:
    sizes = model_sizes.of_config(config)
    assert sizes["parameters"] == pytest.approx(expected, rel=1e-4)
    tables = sizes["parameters"] - model_sizes.body(sizes)
    assert tables + model_sizes.read_body(sizes) == pytest.approx(read, rel=0.01)


def test_parameters_are_those_that_the_model_has(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    from transformers import AutoModelForCausalLM

    expected = AutoModelForCausalLM.from_pretrained(folder).num_parameters()
    assert model_sizes.of_path(folder)["parameters"] == expected


def test_a_gguf_file_tells_its_sizes_before_its_vocabulary(tmp_path: Path) -> None:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    def number(name: str, value: int) -> bytes:
        return text(f"llama.{name}") + struct.pack("<II", 4, value)

    head = b"".join([
        text("general.languages") + struct.pack("<IIQ", 9, 8, 1) + text("en"),
        number("embedding_length", 96), number("block_count", 2), number("vocab_size", 34),
        number("feed_forward_length", 256), number("attention.head_count", 4),
    ])  # fmt: skip
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 7) + head + text("tokenizer.tokens"))
    found = model_sizes.of_path(file)
    assert (found["layers"], found["hidden"], found["vocabulary"]) == (2, 96, 34)


def dpo(
    config: DpoConfig,
    hardware: Hardware,
    model: dict[str, Any] = LLAMA,
    pairs: Sizes = PAIRS,
) -> Call:
    policy, tokens = write_rows(1), write_rows(2)  # stand for steps whose sizes are known
    sizes = {policy.fingerprint: model_sizes.of_config(model), tokens.fingerprint: pairs}
    arguments = {"policy": policy, "tokens": tokens, "config": config}
    return Call(arguments, lambda value: sizes[value.fingerprint], hardware)


@pytest.mark.parametrize(
    ("chosen", "row"),
    [
        (of_rows.CHOSEN_PAIRS, {"prompt": 20.0, "chosen": 5.0, "rejected": 5.0}),
        (of_rows.CHOSEN_DEMONSTRATIONS, {"total": 25.0}),
    ],
    ids=["pairs", "demonstrations"],
)
def test_of_rollouts_at_most_one_row_a_prompt_is_chosen(
    chosen: Estimator, row: dict[str, float]
) -> None:
    def foreseen(drawn: Sizes) -> Foreseen:
        return chosen.foresee(Call({"rollouts": write_rows(1)}, lambda _: drawn, Hardware()))

    of_100, of_200 = (
        foreseen({"prompts": prompts, "prompt": 20.0, "completion": 5.0})
        for prompts in (100.0, 200.0)
    )
    assert {name: of_100.sizes[name] for name in ("rows", *row)} == {"rows": 100.0, **row}
    assert 0 < of_100.sizes["bytes"] < of_200.sizes["bytes"] < 2 * of_100.sizes["bytes"]
    assert of_100.seconds is not None
    assert of_100.memory is not None
    assert foreseen({}) == Foreseen()  # nobody knows how many are drawn


def test_what_eight_gpus_need_is_said_before_anyone_rents_them() -> None:
    config = DpoConfig(
        dtype=Dtype.bfloat16,
        tokens_per_forward=16384,
        batch_size=128,
        activation_checkpointing=ActivationCheckpointing.full,
    )
    eight = of_training.PREFERENCE.foresee(dpo(config, Hardware("NVIDIA H100 80GB HBM3", 8)))
    one = of_training.PREFERENCE.foresee(dpo(config, Hardware("NVIDIA H100 80GB HBM3", 1)))
    unknown = of_training.PREFERENCE.foresee(dpo(config, Hardware("", 8)))
    assert eight.memory is not None
    assert one.memory is not None
    assert eight.memory < 80e9 < one.memory  # 16 bytes a parameter on one device alone
    assert eight.memory == unknown.memory
    assert unknown.seconds is None  # nobody knows how fast it is
    assert eight.sizes["bytes"] == pytest.approx(16.1e9, rel=0.01)
    whole = replace(config, gather_once=True)  # all weights and gradients, in the backward
    assert memory(whole, 80 * 2**30) > memory(config, 80 * 2**30) + 40e9
    assert memory(config, 500 * 2**30) == memory(whole, 500 * 2**30)  # as the trainer then decides
    # 6 operations a parameter and token, at the share of the peak that training reaches
    floor = 6 * 8e9 * 756 * 60000 / (8 * 989e12)
    assert eight.seconds is not None
    assert floor < eight.seconds < 5 * floor


def memory(config: DpoConfig, of_one: int) -> float:
    """What one of eight GPUs with so much memory needs."""
    hardware = Hardware("NVIDIA H100 80GB HBM3", 8, memory=of_one)
    found = of_training.PREFERENCE.foresee(dpo(config, hardware)).memory
    assert found is not None
    return found


def test_adapters_need_less(tmp_path: Path) -> None:
    from steps.models.config import Quantization
    from steps.training.config import OptimizerConfig

    hardware = Hardware("NVIDIA H100 80GB HBM3", 1)
    whole = of_training.PREFERENCE.foresee(dpo(DpoConfig(), hardware))
    adapted = of_training.PREFERENCE.foresee(dpo(DpoConfig(lora=LoraConfig(r=8)), hardware))
    assert adapted.memory < whole.memory / 2  # type: ignore[operator]
    lora = LoraConfig(r=8, quantization=Quantization.nf4)
    rounded = of_training.PREFERENCE.foresee(dpo(DpoConfig(lora=lora), hardware))
    assert rounded.memory < adapted.memory / 2  # type: ignore[operator]
    weighed = of_training.PREFERENCE.foresee(dpo(DpoConfig(lora=LoraConfig(dora=True)), hardware))
    assert adapted.seconds < weighed.seconds < whole.seconds  # type: ignore[operator]
    assert adapted.memory < weighed.memory < whole.memory / 2  # type: ignore[operator]
    optimizer = OptimizerConfig(eight_bit=True)
    small = of_training.PREFERENCE.foresee(dpo(DpoConfig(optimizer=optimizer), hardware))
    assert small.memory < 0.8 * whole.memory  # type: ignore[operator]
    assert adapted.scratch < whole.scratch / 50


@pytest.mark.parametrize(
    "lora",
    [LoraConfig(r=3), LoraConfig(r=3, dora=True, modules_to_save=["embed_tokens", "lm_head"])],
)
def test_what_is_trained_with_adapters_is_counted(lora: LoraConfig) -> None:
    from steps.models.adapters import add_adapter

    model = llama(tied=False)
    add_adapter(model, lora, seed=0)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    sizes = model_sizes.of_config(model.config.to_dict())
    assert of_training.trained_parameters(sizes, DpoConfig(lora=lora)) == trained


def test_a_reference_beside_the_policy_is_a_second_model_and_a_forward() -> None:
    hardware = Hardware("NVIDIA H100 80GB HBM3", 1)

    def foreseen(**settings: Any) -> tuple[Foreseen, Foreseen]:
        configs = (DpoConfig(loss=loss, **settings) for loss in (Dpo(), Tdpo()))
        alone, beside = (of_training.PREFERENCE.foresee(dpo(each, hardware)) for each in configs)
        assert alone.seconds
        assert beside.seconds
        assert alone.seconds < beside.seconds < 1.7 * alone.seconds
        return alone, beside

    alone, beside = foreseen(dtype=Dtype.bfloat16)
    assert 1 < (beside.memory - alone.memory) / 16.1e9 < 1.2  # type: ignore[operator]
    alone, beside = foreseen(dtype=Dtype.bfloat16, lora=LoraConfig(r=8))
    more = beside.memory - alone.memory  # type: ignore[operator]
    assert 0 <= more < 2**30  # the policy's own without its adapters; but its logits, too


@pytest.mark.parametrize(
    ("examples", "loss", "measured"),
    [(4, Dpo(), 2.21e9), (4, Tdpo(), 2.27e9), (8, Dpo(), 2.22e9), (8, Tdpo(), 2.49e9)],
)
def test_the_memory_of_adapters_on_a_processor_is_about_what_was_measured(
    examples: int, loss: ReferenceLoss, measured: float
) -> None:
    """The weights of a Llama of 135M parameters are mapped from their file, and those that adapters
    are merged into are there twice in the end."""
    shape = {
        "hidden_size": 576, "num_hidden_layers": 30, "intermediate_size": 1536,
        "vocab_size": 49152, "num_attention_heads": 9, "num_key_value_heads": 3,
    }  # fmt: skip
    config = DpoConfig(lora=LoraConfig(r=16), batch_size=examples, loss=loss)
    pairs = {"rows": 8, "prompt": 40.0, "chosen": 20.0, "rejected": 20.0}
    foreseen = of_training.PREFERENCE.foresee(dpo(config, Hardware(), shape, pairs))
    assert foreseen.memory == pytest.approx(measured, rel=0.15)


def test_a_run_that_samples_behind_training_holds_weights_for_each_iteration_of_its_lag() -> None:
    policy, prompts = write_rows(1), write_rows(2)  # stand for steps whose sizes are known
    sizes = {
        policy.fingerprint: model_sizes.of_config(LLAMA),
        prompts.fingerprint: {"prompt": 99.0},
    }

    def price(lag: int) -> Foreseen:
        arguments = {"policy": policy, "prompts": prompts, "iterations": 9}
        call = Call({**arguments, "config": RlConfig(lag=lag)}, lambda v: sizes[v.fingerprint],
                    Hardware(threads=8))  # fmt: skip
        return of_online.ONLINE.foresee(call)

    in_step, behind = price(0), price(2)
    copies = 2 * 4 * model_sizes.of_config(LLAMA)["parameters"]
    assert in_step.memory is not None
    assert behind.memory == pytest.approx(in_step.memory + copies)
    assert behind.scratch == pytest.approx(in_step.scratch + copies)
    assert in_step.sizes["parts"]["model"]["bytes"] == pytest.approx(32.1e9, rel=0.01)
    assert behind.seconds == in_step.seconds


def test_training_on_rollouts_that_exist_has_an_iteration_for_each_of_its_prompts() -> None:
    """Its time is known where the number of its prompts is, and its memory without that."""
    rollouts, policy = write_rows(1), write_rows(2)

    def price(model: Sizes, prompts: Sizes) -> Foreseen:
        sizes = {policy.fingerprint: model, rollouts.fingerprint: prompts}
        arguments = {"rollouts": rollouts, "policy": policy, "config": RlConfig(prompts=64)}
        return of_online.REPLAYED.foresee(
            Call(arguments, lambda v: sizes[v.fingerprint], Hardware(threads=8))
        )

    model, lengths = model_sizes.of_config(LLAMA), {"prompt": 99.0, "completion": 200.0}
    few, many = (price(model, {**lengths, "prompts": n}) for n in (64, 6400))
    assert 0 < (few.seconds or 0) < (many.seconds or 0)
    unknown = price(model, lengths)
    assert unknown.seconds is None
    assert unknown.memory == many.memory
    assert unknown.sizes["parts"]["model"]["bytes"] == pytest.approx(32.1e9, rel=0.01)
    assert price({}, lengths) == Foreseen()


def trained(config: DpoConfig, pace: float = 1.0) -> Foreseen:
    call = dpo(config, Hardware("CPU", threads=8))
    return of_training.PREFERENCE.foresee(replace(call, pace=pace))


def test_checkpoints_count_where_a_step_takes_long_enough_to_write_them() -> None:
    few = DpoConfig(max_steps=4, checkpoint_every_seconds=None)
    without = trained(few)
    assert without.scratch == 0
    assert without.seconds is not None
    assert without.memory is not None
    seldom = replace(few, checkpoint_every_seconds=without.seconds)
    assert trained(seldom) == without
    later = trained(seldom, pace=2.0)  # as on a machine that takes twice as long
    one = 4 * 3 * model_sizes.of_config(LLAMA)["parameters"]  # weights and two moments
    assert later.seconds == without.seconds
    assert later.scratch == pytest.approx(one)
    assert later.memory == pytest.approx(without.memory + one)  # written from a copy
    often = replace(few, checkpoint_every_steps=1, keep_last=1)
    assert trained(often).scratch == pytest.approx(
        2 * one
    )  # the old one goes once the new is there
    assert trained(replace(often, keep_last=9)).scratch == pytest.approx(3 * one)  # not at the end


def test_held_out_rows_take_time_between_steps() -> None:
    config = DpoConfig(max_steps=4)
    alone = trained(config).seconds
    call = dpo(replace(config, eval_every_steps=2), Hardware("CPU", threads=8))
    held_out = {**call.arguments, "held_out": call.arguments["tokens"]}
    evaluating = of_training.PREFERENCE.foresee(replace(call, arguments=held_out)).seconds
    assert alone is not None
    assert evaluating is not None
    assert evaluating > 2 * alone  # 60,000 rows, twice


def test_an_evaluation_on_several_devices_loads_a_whole_model_on_each() -> None:
    config = EvaluateConfig(dtype=Dtype.bfloat16)
    call = dpo(DpoConfig(), Hardware("", 8))
    arguments = {**call.arguments, "model": call.arguments["policy"], "config": config}
    memory = of_generation.EVALUATED.foresee(replace(call, arguments=arguments)).memory
    assert memory is not None
    assert memory > 16e9


@pytest.mark.parametrize("file", ["text", "bytes"])
def test_lengths_are_those_of_long_rows_and_of_short_ones(file: str) -> None:
    """Of UltraFeedback and of the demo's rows, measured with SmolLM2's tokenizer."""
    for rows, text, compressed, prompt, response in (
        (439, 3003.0, 562607, 206, 275),
        (24, 134.0, 4992, 37.7, 15.7),
    ):
        size = {"rows": rows, "text": text} if file == "text" else {"bytes": compressed}
        lengths = of_rows._pair_lengths({"rows": rows, **size})
        assert lengths["prompt"] == pytest.approx(prompt, rel=0.15)
        assert lengths["chosen"] == pytest.approx(response, rel=0.5)


def test_a_text_counts_once_however_often_its_row_has_it(tmp_path: Path) -> None:
    asked, good, bad = "What is 1 + 1?", "2", "I think that it is 2"
    turns = [[{"role": "user", "content": asked}, {"role": "assistant", "content": text}]
             for text in (good, bad)]  # fmt: skip
    plain = {"prompt": asked, "chosen": good, "rejected": bad}
    rows = [plain, {"prompt": asked, "chosen": turns[0], "rejected": turns[1]}]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + "no JSON\n")
    texts = [len(asked + good + bad), len(asked + good + bad + "user" + "assistant"), 3]
    assert row_sizes.of_source(File(str(file))) == {"rows": 3, "text": sum(texts) / 3}
    (tmp_path / "empty.jsonl").write_text("")
    assert row_sizes.of_source(File(str(tmp_path / "empty.jsonl"))) == {}


def test_experiments_are_priced_whole(tmp_path: Path) -> None:
    small = ["scale=smoke"]
    for name, options in (
        ("dpo_arithmetic", []),
        ("dpo_ultrafeedback", small),
        ("dpo_beta_sweep", small),
        ("kto_ultrafeedback", small),
        ("grpo_tools", []),
    ):
        path = REPOSITORY / "experiments" / f"{name}.py"
        planned = script(path, f"store={tmp_path}", "--plan", *options)
        assert planned.status == 0, planned.err
        assert ": about " in planned.out.splitlines()[-1]
        assert "–" not in planned.out


def test_the_last_batch_of_an_epoch_is_a_shorter_step() -> None:
    call = dpo(DpoConfig(batch_size=4, max_steps=2), Hardware("CPU", threads=8))

    def seconds(rows: int) -> float:
        tokens = {**PAIRS, "rows": rows}
        sizes = {"tokens": tokens, "policy": model_sizes.of_config(LLAMA)}
        named = {call.arguments[name].fingerprint: of for name, of in sizes.items()}
        found = replace(call, size_of=lambda value: named[value.fingerprint])
        taken = of_training.PREFERENCE.foresee(found).seconds
        assert taken is not None
        return taken

    assert seconds(5) < 0.8 * seconds(8)


def test_a_reward_model_lies_beside_the_policy() -> None:
    policy, prompts, rewards = (write_rows(count) for count in (1, 2, 3))
    llama = model_sizes.of_config(LLAMA)
    sizes = {
        policy.fingerprint: llama,
        prompts.fingerprint: {"prompt": 99.0},
        rewards.fingerprint: llama,
    }

    def price(**more: object) -> Foreseen:
        given = {"policy": policy, "prompts": prompts, "iterations": 9, "config": RlConfig()}
        call = Call({**given, **more}, lambda v: sizes[v.fingerprint], Hardware(threads=8))
        return of_online.ONLINE.foresee(call)

    alone, beside = price(), price(reward_model=rewards, scoring=ModelRewards())
    assert alone.memory is not None
    assert alone.seconds is not None
    assert beside.memory == pytest.approx(alone.memory + 4 * llama["parameters"])
    assert beside.seconds > alone.seconds  # type: ignore[operator]


def test_what_was_judged_is_known_by_its_metrics() -> None:
    manifest: Any = SimpleNamespace(metrics=count_verdicts(()))
    found = of_generation.JUDGED_ROLLOUTS.measure(Made(manifest, lambda name: None))
    assert found == {"completions": 0}
