"""What is handed over: the card's snippet runs, its values exist, adapters come along or alone."""

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import yaml
from step_output import Folder
from test_gguf import write_model, write_tokenizer
from transformers import AutoModelForCausalLM, GenerationConfig

from pipeline import Artifact, TemperError
from steps.data.tokens.rendering import load_bare_tokenizer
from steps.export.card import NONE, Ancestor, ModelCard, Sample, render_card
from steps.export.config import Adapters
from steps.export.published_folder import export_adapters, export_merged
from steps.export.training_curves import draw_curves
from steps.export.versions import made_with
from steps.export_hf import export_hf
from steps.losses.ipo import Ipo
from steps.models.adapters import add_adapter, merge_adapter, save_adapter
from steps.models.config import Dtype, LoraConfig
from steps.models.folders import load_model, save_model
from steps.scoring.scored_by import model_digest
from steps.shared.markdown import as_text
from steps.training.config import PreferenceConfig, TrainConfig

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
AFTER = {
    "eval_loss": 0.25,
    "eval_rewards/accuracies": {"value": 1.0, "low": 0.9, "high": 1.0},
    "eval_logps/accuracies": {"value": 0.9, "low": 0.8, "high": 1.0},
    "gain/logps/accuracies": {"value": 0.4, "low": 0.2, "high": 0.6},
    "gain/logps/accuracies/p": 0.01,
    "gain/logps/margins": {"value": 15.6, "low": 13.7, "high": 17.6},
    "pairs": 24,
}
BEFORE = {
    "eval_rewards/accuracies": {"value": 0.0, "low": 0.0, "high": 0.1},
    "eval_logps/accuracies": {"value": 0.5, "low": 0.4, "high": 0.6},
    "pairs": 24,
}


def card_of(**settings: Any) -> ModelCard:
    return ModelCard(
        **{"title": "Title", "base_model": "owner/base", "data": "owner/pairs", **settings}
    )


def run_snippet(card: str, folder: Path) -> str:
    """What the program of a card prints, when it is run in a folder."""
    program = card.partition("```python\n")[2].partition("```")[0]
    printed = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        exec(compile(program, "snippet", "exec"), {"__name__": "__main__"})
    return printed.getvalue().strip()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was trained with adapters, as training leaves it; its base is beside it."""
    folder = tmp_path_factory.mktemp("exported") / "trained"
    base = folder.with_name("base")
    write_model(base, tie_word_embeddings=False)
    tokenizer = write_tokenizer(base)
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(base)
    adapted = add_adapter(load_model(base), LoraConfig(r=4), seed=0)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.1)
    save_adapter(adapted, folder / "adapter", model_digest(base))
    save_model(merge_adapter(adapted), folder, tokenizer_from=base)
    return folder


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(20)[None]).logits


def test_the_snippet_of_a_card_runs_in_the_folder(trained: Path, tmp_path: Path) -> None:
    export_merged(trained, tmp_path / "out", Dtype.float32, keep_adapters=True)
    prompt = 'the "cat" sat```\n on { the } mat 你好'
    card = render_card(card_of(), AFTER, samples=[Sample(prompt, "x", "y")])
    assert run_snippet(card, tmp_path / "out")


def test_adapters_come_along_and_give_beside_the_base_what_the_merged_weights_give(
    trained: Path, tmp_path: Path
) -> None:
    export_merged(trained, tmp_path / "kept", Dtype.float32, keep_adapters=True)
    export_merged(trained, tmp_path / "merged", Dtype.float32, keep_adapters=False)
    assert not (tmp_path / "merged" / "adapter").exists()
    base = AutoModelForCausalLM.from_pretrained(trained.with_name("base"))
    adapted = peft.PeftModel.from_pretrained(base, str(tmp_path / "kept" / "adapter"))
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "kept")
    torch.testing.assert_close(logits(adapted), logits(merged), atol=1e-4, rtol=1e-4)


def test_an_exported_model_stops_where_its_template_ends_an_answer(
    trained: Path, tmp_path: Path
) -> None:
    """As after SFT of a base model, whose generation config names the end of a text only."""
    base, tokenizer = tmp_path / "base", load_bare_tokenizer(trained)
    shutil.copytree(trained, base)
    taught = tokenizer.convert_tokens_to_ids("<|im_end|>")
    config = GenerationConfig.from_pretrained(base)
    config.eos_token_id = 0 if taught else 1
    config.save_pretrained(base)
    export_merged(base, tmp_path / "out", Dtype.float32, keep_adapters=False)
    ends = GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id
    assert ends[0] == config.eos_token_id
    assert taught in ends


def test_adapters_alone_name_their_base_and_their_snippet_runs(
    trained: Path, tmp_path: Path
) -> None:
    base = str(trained.with_name("base"))
    export_adapters(trained, tmp_path / "alone", Path(base), base)
    names = {path.name for path in (tmp_path / "alone").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= names
    assert not names & {"config.json", "model.safetensors", "base.json"}
    described = json.loads((tmp_path / "alone" / "adapter_config.json").read_text())
    assert described["base_model_name_or_path"] == base
    card = render_card(card_of(base_model=base), AFTER, adapters_alone=True)
    assert "library_name: peft\n" in card
    run_snippet(card, tmp_path / "alone")


def test_adapters_alone_are_refused_for_a_base_that_is_not_theirs(
    trained: Path, tmp_path: Path
) -> None:
    """As those of DPO for the model before SFT: both together would be another model."""
    with pytest.raises(
        ValueError, match="on other weights than those of the base model owner/base"
    ):
        export_adapters(trained, tmp_path / "out", trained, "owner/base")
    exported: Any = export_hf.function
    given = (Artifact(trained, "", ""), Artifact(tmp_path, "", ""), card_of())
    with pytest.raises(TemperError, match="needs base="):
        exported(Folder(tmp_path / "step"), *given, adapters=Adapters.alone)


def front_matter(card: str) -> Any:
    return yaml.safe_load(card.split("---\n")[1])


def test_a_hub_reads_base_model_and_data_of_a_card() -> None:
    made = card_of(data="owner/pairs + file.jsonl", sft=TrainConfig(), dpo=PreferenceConfig())
    front = front_matter(render_card(made, AFTER))
    assert front["base_model"] == "owner/base"
    assert front["base_model_relation"] == "finetune"
    assert front["datasets"] == ["owner/pairs"]
    assert (front["library_name"], front["pipeline_tag"]) == ("transformers", "text-generation")
    assert "dpo" in front["tags"]


def test_a_card_tells_only_of_the_training_that_it_was_given() -> None:
    """A model after SFT alone was trained on no pairs, and one after DPO alone on no responses."""
    sft = render_card(card_of(sft=TrainConfig()), AFTER)
    assert "`owner/base`, trained on the responses of `owner/pairs` (SFT).\n" in sft
    assert front_matter(sft)["tags"] == ["temper", "sft"]
    assert "dpo" not in sft
    dpo = render_card(card_of(dpo=PreferenceConfig()), AFTER)
    assert "trained on the preference pairs of `owner/pairs`, minimising the loss `dpo`.\n" in dpo
    assert front_matter(dpo)["tags"] == ["temper", "dpo"]
    assert "`owner/base`, trained on `owner/pairs`.\n" in render_card(card_of(), AFTER)


def test_a_licence_is_told_to_the_hub_and_to_people() -> None:
    card = render_card(card_of(license="apache-2.0"), AFTER)
    assert front_matter(card)["license"] == "apache-2.0"
    assert "under the licence `apache-2.0`" in card


def test_names_that_no_hub_knows_are_in_the_text_alone() -> None:
    card = render_card(card_of(base_model="folder", data="pairs.jsonl"), AFTER)
    assert not {"base_model", "datasets"} & front_matter(card).keys()
    assert "`folder`" in card
    assert "`pairs.jsonl`" in card


def test_results_are_before_after_and_their_change_and_what_does_not_exist_is_a_dash() -> None:
    card = render_card(card_of(), AFTER, BEFORE)
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in card.splitlines()}
    assert rows["eval_loss"] == f"| eval_loss | {NONE} | 0.25 | {NONE} | {NONE} |"
    assert rows["eval_rewards/accuracies"].startswith(
        f"| eval_rewards/accuracies | {NONE} | 1 (0.9 to 1) |"
    )  # the model before has no reference, so it has no reward
    assert rows["eval_logps/accuracies"] == (
        "| eval_logps/accuracies | 0.5 (0.4 to 0.6) | 0.9 (0.8 to 1) | 0.4 (0.2 to 0.6) | 0.01 |"
    )
    assert rows["eval_logps/margins"].endswith("| 15.6 (13.7 to 17.6) | – |")
    assert not any(name.startswith("gain/") for name in rows)


def test_settings_without_a_value_or_a_bearing_on_the_result_are_left_out() -> None:
    dpo = PreferenceConfig(loss=Ipo(0.25), lora=LoraConfig(r=8))
    card = render_card(card_of(sft=TrainConfig(), dpo=dpo), AFTER)
    assert "| dpo.loss | ipo |" in card
    assert "| dpo.loss.beta | 0.25 |" in card
    assert "checkpoint_every" not in card
    assert "None" not in card
    assert "[]" not in card
    assert "| dpo.lora.r | 8 |" in card
    assert "sft.lora" not in card


def test_a_card_shows_samples_lineage_and_with_what_it_was_made() -> None:
    card = render_card(
        card_of(),
        AFTER,
        BEFORE,
        [Ancestor("training data", "load_preferences", "abc123")],
        [Sample("What | now?", None, "*This*")],
        "curves.png",
        made_with(),
    )
    for part in (
        r"| What \| now? | – | \*This\* |",
        "| training data | load_preferences | abc123 |",
        "![Curves of preference training](curves.png)",
        f"| torch | {as_text(torch.__version__)} |",
        "| exported on | ",
    ):
        assert part in card


def test_curves_are_drawn_of_what_was_measured(tmp_path: Path) -> None:
    picture = tmp_path / "curves.png"
    assert not draw_curves(tmp_path, picture)
    lines = [{"step": n, "loss": 1 / n, "rewards/margins": n, "eval_loss": None} for n in (1, 2, 3)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert draw_curves(tmp_path, picture)
    first = picture.read_bytes()
    assert first.startswith(b"\x89PNG")
    assert draw_curves(tmp_path, picture)
    assert picture.read_bytes() == first
