"""Bugs that users of other training libraries have reported, each as it would show here.

What has a test beside the code it is about is not repeated: BOS written twice, responses emptied by
truncation, prompts that are no prefix (`test_tokenizing`); data skipped or repeated on resuming
(`test_checkpoints`); the rate of the first step, `max_steps`, two code paths for policy and
reference (`test_training_loop`); a mean weighted by micro-batches (`test_objective_parity`).
"""

import dataclasses
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from safetensors.torch import load_file
from tiny_models import (
    SIZES,
    VOCABULARY,
    demonstration_records,
    gpt2,
    llama,
    log_of,
    model_folder,
    pair_records,
    word_tokenizer,
)
from token_groups import group, ids
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
)

from pipeline import adopt
from steps.data.images.placeholders import reads_images
from steps.jax_backend.backend_choice import JaxTraining
from steps.jax_backend.config import JaxScoring
from steps.kinds import Model, PairTokens
from steps.losses.dpo import Dpo
from steps.models.config import ActivationCheckpointing, Dtype, LoraConfig, Quantization
from steps.models.folders import load_model
from steps.models.importing import import_pretrained
from steps.models.workplace import Workplace
from steps.reference_logprobs import reference_logprobs
from steps.scoring.attention import use_packed_attention
from steps.scoring.config import ReferenceConfig
from steps.scoring.examples import read_pairs
from steps.scoring.logps import TokenLogps, forward_backward, token_logps
from steps.scoring.packing import make_pack
from steps.scoring.reference import read_reference, run_reference
from steps.train_dpo import train_dpo
from steps.training.config import DpoConfig, OptimizerConfig, Schedule, TrainConfig
from steps.training.optimizer import Updater
from steps.training.recipes import run_dpo, run_sft

FAST = OptimizerConfig(learning_rate=1e-2, schedule=Schedule.constant)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return model_folder(tmp_path / "policy")


def reference_of(model: Path, records: list[dict], work: Path, **settings: Any) -> Path:
    config = ReferenceConfig(**settings)
    run_reference(model, records, config, Workplace(work / "out", work / "scratch"))
    return work / "out"


def dpo(policy: Path, records: list[dict], config: DpoConfig, work: Path, **held_out: Any) -> list:
    """The logged steps of a run against its own reference; the model is in `work`/model."""
    reference = reference_of(policy, records, work / "reference")
    place = Workplace(work / "model", work / "scratch")
    run_dpo(policy, records, reference, config, place, **held_out)
    return log_of(work / "model")


# --- packing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [llama, gpt2])
def test_packed_groups_do_not_see_each_other(tmp_path: Path, build: Any) -> None:
    model = load_model(model_folder(tmp_path, build)).eval()
    use_packed_attention(model)
    draw = random.Random(0)
    groups = [group(ids(draw, 5), ids(draw, 6), ids(draw, 4)) for _ in range(3)]
    neighbours = [group(ids(draw, 5), ids(draw, 6), ids(draw, 4)) for _ in range(2)]
    others = [neighbours[0], groups[1], neighbours[1]]
    own, among_others = (token_logps(model, pack) for pack in map(make_pack, (groups, others)))
    span = slice(10, 20)
    assert torch.equal(own[span], among_others[span])
    assert not torch.equal(own[:10], among_others[:10])


def test_a_rejected_response_does_not_see_the_chosen_one(policy: Path) -> None:
    model = load_model(policy).eval()
    use_packed_attention(model)
    draw = random.Random(1)
    prompt, rejected = ids(draw, 5), ids(draw, 7)
    first, second = (
        token_logps(model, make_pack([group(prompt, ids(draw, 6), rejected)]))[6:] for _ in range(2)
    )
    assert torch.equal(first, second)


@pytest.mark.parametrize("attention", ["packed", "padded"])
def test_no_token_is_reserved_for_padding(tmp_path: Path, attention: str) -> None:
    """Every id may be a word: what fills up rows must be neither attended to nor scored."""
    folder = model_folder(tmp_path, lambda: llama(tied=False))
    model, changed = load_model(folder).eval(), load_model(folder).eval()
    with torch.no_grad():
        changed.get_parameter("model.embed_tokens.weight")[0] += 5.0
    draw = random.Random(2)
    without_0 = [
        group(*([1 + i % (VOCABULARY - 1) for i in ids(draw, length)] for length in lengths))
        for lengths in ((3, 9, 2), (5, 1, 7))
    ]
    of_0 = [group((0, 0, 4), (0, 7, 0), (0,)), group((3,), (5, 0, 0, 0), (0, 0))]
    slow = oracle.load(folder, torch.float32)
    for each in (model, changed):
        if attention == "packed":
            use_packed_attention(each)
    assert torch.equal(*(token_logps(each, make_pack(without_0)) for each in (model, changed)))
    expected = [oracle.token_logps(slow, g.prompt_ids, r.ids) for g in of_0 for r in g.responses]
    torch.testing.assert_close(token_logps(model, make_pack(of_0)), torch.cat(expected))


# --- references ----------------------------------------------------------------------------------


def test_a_reference_in_shards_gives_every_row_its_own(policy: Path, tmp_path: Path) -> None:
    """An index into all rows used within a shard pairs rows with others' references."""
    records = pair_records(11)
    folder = reference_of(policy, records, tmp_path, groups_per_shard=3)
    pairs = read_pairs(reversed(records), VOCABULARY)
    found = read_reference(folder).of(pairs)
    slow = oracle.load(policy, torch.float32)
    with torch.no_grad():
        expected = torch.stack(
            [oracle.group_logps(slow, g.prompt_ids, [r.ids for r in g.responses]) for g in pairs]
        )
    torch.testing.assert_close(found, expected.double(), rtol=1e-5, atol=1e-5)
    assert len(set(found.flatten().tolist())) == 22


def test_held_out_rewards_are_against_the_model_from_before_training(
    policy: Path, tmp_path: Path
) -> None:
    """Where the trained model is taken for the reference, all rewards are 0."""
    records, held_out = pair_records(8), pair_records(5, seed=1)
    before = reference_of(policy, held_out, tmp_path / "held-out")
    config = DpoConfig(batch_size=8, epochs=4, optimizer=FAST, eval_every_steps=2, loss=Dpo(0.3))
    log = dpo(policy, records, config, tmp_path, held_out=(held_out, before))
    reference, trained = oracle.load(policy), oracle.load(tmp_path / "model")
    margins = []
    with torch.no_grad():
        for pair in read_pairs(held_out, VOCABULARY):
            responses = [r.ids for r in pair.responses]
            c, r = oracle.group_logps(trained, pair.prompt_ids, responses)
            rc, rr = oracle.group_logps(reference, pair.prompt_ids, responses)
            margins.append(0.3 * ((c - rc) - (r - rr)))
    expected = torch.stack(margins)
    assert expected.abs().max() > 0.1
    last = log[-1]
    assert last["eval_rewards/margins"] == pytest.approx(expected.mean().item(), abs=1e-4)
    loss = -torch.nn.functional.logsigmoid(expected).mean().item()
    assert last["eval_loss"] == pytest.approx(loss, abs=1e-4)


def settings_of(config: Any) -> Iterator[tuple[str, Any]]:
    """Every identity field of a config and of those inside it, and the config with it changed."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if not field.metadata.get("identity", True):
            continue
        if dataclasses.is_dataclass(value):
            for name, inner in settings_of(value):
                yield f"{field.name}.{name}", replace(config, **{field.name: inner})
        else:
            yield field.name, replace(config, **{field.name: other(config, field.name)})


def other(config: Any, name: str) -> Any:
    if name == "backend":
        return JaxScoring() if isinstance(config, ReferenceConfig) else JaxTraining()
    return OTHER[name]


OTHER: dict[str, Any] = {
    "follow_every": 2,
    "follow_alpha": 0.5,
    "epochs": 3.0,
    "max_steps": 5,
    "snapshot_every_steps": 2,
    "ema_decay": 0.9,
    "z_loss_coef": 1e-4,
    "log_rows": True,
    "batch_sizes": {2: 4},
    "batch_size": 3,
    "tokens_per_forward": 77,
    "seed": 4,
    "dtype": Dtype.bfloat16,
    "master_weights": False,
    "attention": "padded",
    "activation_checkpointing": ActivationCheckpointing.full,
    "lora": LoraConfig(),
    "router_aux_loss_coef": 0.5,
    "learning_rate": 1e-3,
    "schedule": Schedule.cosine,
    "warmup_steps": 2,
    "warmup_fraction": 0.25,
    "final_fraction": 0.25,
    "decay_fraction": 0.3,
    "weight_decay": 0.1,
    "adam_beta1": 0.8,
    "adam_beta2": 0.99,
    "adam_epsilon": 1e-6,
    "max_grad_norm": None,
    "eight_bit": True,
    "algorithm": "lion",
    "momentum": 0.5,
    "rates": {"lm_head": 2.0},
    "warmup_from_zero": True,
    "quantization": Quantization.nf4,
    "r": 8,
    "alpha": 8.0,
    "dropout": 0.1,
    "target_modules": ["q_proj"],
    "rslora": True,
    "merged": True,
    "dora": True,
    "modules_to_save": ["lm_head"],
    "eval_every_steps": 2,
    "keep_best": "eval_rewards/margins",
    "early_stop_patience": 3,
    "compile_layers": True,
    "beta": 0.7,
    "label_smoothing": 0.2,
    "nll_weight": 0.5,
}


def test_no_setting_is_left_out_of_what_a_result_is_cached_under(
    policy: Path, tmp_path: Path
) -> None:
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens/rows.json").write_text("[]")
    tokens = adopt(str(tmp_path / "tokens"), PairTokens)
    model = adopt(str(policy), Model)

    def reference(config: ReferenceConfig) -> str:
        return reference_logprobs(tokens, model, config).fingerprint

    def trained(config: DpoConfig) -> str:
        return train_dpo(tokens, model, reference_logprobs(tokens, model), config).fingerprint

    base = DpoConfig(
        eval_every_steps=1, keep_best="eval_loss", early_stop_patience=1, follow_every=1
    )
    fingerprints = {"as it is": trained(base)}
    fingerprints |= {name: trained(config) for name, config in settings_of(base)}
    assert len(fingerprints) > 20
    assert len(set(fingerprints.values())) == len(fingerprints)
    fingerprints = {"as it is": trained(DpoConfig(lora=LoraConfig()))}
    fingerprints |= {n: trained(DpoConfig(lora=lora)) for n, lora in settings_of(LoraConfig())}
    assert len(set(fingerprints.values())) == len(fingerprints) > 6
    fingerprints = {"as it is": reference(ReferenceConfig())}
    fingerprints |= {name: reference(config) for name, config in settings_of(ReferenceConfig())}
    assert len(set(fingerprints.values())) == len(fingerprints) == 6


# --- losses --------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{"num_hidden_layers": 3}, {"intermediate_size": 48}])
def test_weights_that_a_config_describes_and_a_folder_lacks_are_not_drawn_at_random(
    policy: Path, tmp_path: Path, change: dict[str, int]
) -> None:
    word_tokenizer().save_pretrained(policy)
    config = json.loads((policy / "config.json").read_text())
    (policy / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ValueError, match=r"do not fit its config.json: they lack model\.layers"):
        import_pretrained(str(policy), tmp_path / "out", Dtype.float32, None)
    with pytest.raises(ValueError, match=r"do not fit its config.json: they lack model\.layers"):
        load_model(policy)


@pytest.mark.parametrize("build", [llama, lambda: llama(tied=False)])
def test_the_config_of_an_imported_model_says_whether_its_head_is_its_embeddings(
    build: Any, tmp_path: Path
) -> None:
    """A config that ties two different matrices is that of another model to all that go by it, such
    as vLLM, JAX and llama.cpp; transformers leaves the two apart, so that is what is trained."""
    source = model_folder(tmp_path / "source", build)
    word_tokenizer().save_pretrained(source)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    import_pretrained(str(source), tmp_path / "out", Dtype.float32, "{{ messages }}")
    has_head = "lm_head.weight" in load_file(tmp_path / "out" / "model.safetensors")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["tie_word_embeddings"] is not has_head


def seeing() -> PreTrainedModel:
    text = {
        **SIZES,
        "head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 0]},
    }
    tower = {"hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "depth": 1}
    config = Qwen3_5Config(text_config=text, vision_config={**tower, "out_hidden_size": 16})
    return Qwen3_5ForConditionalGeneration(config)


def test_a_model_that_lost_its_part_for_images_says_so(tmp_path: Path) -> None:
    """Transformers has the language model of Qwen 3.5 by itself, and drops the rest in silence."""
    source, out = model_folder(tmp_path / "source", seeing), tmp_path / "out"
    word_tokenizer().save_pretrained(source)
    (source / "preprocessor_config.json").write_text('{"image_processor_type": "any"}')
    [notice] = import_pretrained(str(source), out, Dtype.float32, None)["notices"]
    assert "reads images" in notice
    assert "(Qwen3_5ForCausalLM)" in notice
    assert not reads_images(out)
    assert not any("visual" in name for name in load_file(out / "model.safetensors"))
    for folder, is_told in ((source, True), (out, False)):  # the first as an adopted model
        place = Workplace(tmp_path / f"{is_told}", tmp_path / f"{is_told}-scratch")
        summary = run_sft(folder, demonstration_records(2), TrainConfig(), place)
        assert (notice in summary["notices"]) is is_told


def test_quantised_weights_are_not_imported(policy: Path, tmp_path: Path) -> None:
    """Of a folder the plan says it; what the Hub has is known only when the step runs."""
    word_tokenizer().save_pretrained(policy)
    config = json.loads((policy / "config.json").read_text())
    described = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    (policy / "config.json").write_text(json.dumps(config | described))
    with pytest.raises(ValueError, match="its weights are quantised"):
        import_pretrained(str(policy), tmp_path / "out", Dtype.float32, None)


# --- precision -----------------------------------------------------------------------------------


def test_rotation_frequencies_stay_in_float32_in_a_bfloat16_model(policy: Path) -> None:
    """In bfloat16, positions beyond a few hundred would share their angles."""
    model = load_model(policy, Dtype.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    buffers = dict(model.named_buffers())
    assert buffers
    assert {buffer.dtype for buffer in buffers.values()} == {torch.float32}
    updater = Updater(model, FAST)
    use_packed_attention(model)
    forward_backward(model, make_pack([group((3, 4), (5, 6), (7,))]), half_of_the_sum)
    updater.step(1e-3)
    assert {buffer.dtype for buffer in model.buffers()} == {torch.float32}


def half_of_the_sum(logps: TokenLogps, groups: slice) -> tuple[Tensor, dict[str, Tensor]]:
    return logps.sums().sum(dim=1) / 2, {}


# --- what is written -----------------------------------------------------------------------------


@pytest.mark.parametrize("lora", [None, LoraConfig(r=4)], ids=["all weights", "adapter"])
def test_what_is_saved_is_the_plain_trained_model(
    policy: Path, tmp_path: Path, lora: LoraConfig | None
) -> None:
    """Neither a wrapper's names, nor the reference's weights, nor an attention of our own."""
    config = DpoConfig(batch_size=6, epochs=3, optimizer=FAST, lora=lora)
    records = pair_records(6)
    log = dpo(policy, records, config, tmp_path)
    before, after = (load_file(f / "model.safetensors") for f in (policy, tmp_path / "model"))
    assert after.keys() == before.keys()
    assert any(not torch.equal(after[name], before[name]) for name in after)
    settings = json.loads((tmp_path / "model/config.json").read_text())
    assert settings["architectures"] == ["LlamaForCausalLM"]
    assert "temper" not in json.dumps(settings)
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert isinstance(saved, PreTrainedModel)
    assert rewards_margin(tmp_path / "model", policy, records) > log[-1]["rewards/margins"]


def rewards_margin(model: Path, reference: Path, records: list[dict]) -> float:
    """The mean margin of `model` over `reference`, by the oracle."""
    after, before = oracle.load(model), oracle.load(reference)
    margins = []
    with torch.no_grad():
        for pair in read_pairs(records, VOCABULARY):
            responses = [r.ids for r in pair.responses]
            ratios = [oracle.group_logps(m, pair.prompt_ids, responses) for m in (after, before)]
            chosen, rejected = ratios[0] - ratios[1]
            margins.append(0.1 * (chosen - rejected).item())
    return sum(margins) / len(margins)


def written(folder: Path, prompt: Tensor) -> Tensor:
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    return model.generate(prompt, max_new_tokens=12, do_sample=False)
