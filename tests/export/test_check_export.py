"""``check_export``: an export's divergence from its original is what was changed, and no more."""

import json
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from step_output import Folder
from test_gguf import write_model, write_tokenizer
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from pipeline import TemperError
from steps.check_export import check_export
from steps.export.checked_export import divergence
from steps.export.config import ExportCheckConfig, GgufType
from steps.export.gguf_file import write_gguf
from steps.export.published_folder import export_merged
from steps.models.config import Dtype
from steps.models.folders import load_model

FEW = ExportCheckConfig(("What is 1 + 23?", "Grüße, 你好 🎉"), 24)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original") / "model"
    write_model(folder, vocab_size=300, hidden_size=64, bos_token_id=None)
    write_tokenizer(folder)
    return folder


def checked(original: Path, exported: Path, work: Path) -> tuple[dict[str, Any], Path]:
    model, export = (SimpleNamespace(path=path, step="export_it") for path in (original, exported))
    check: Any = check_export
    out = Folder(work / "out")
    return check.function(out, model, export, FEW), out.path


def as_dtype(dtype: Dtype) -> Callable[[Path, Path], object]:
    return lambda original, folder: export_merged(original, folder, dtype, False)


def as_gguf(type: GgufType) -> Callable[[Path, Path], None]:
    def write(original: Path, folder: Path) -> None:
        folder.mkdir()
        write_gguf(original, folder / "model.gguf", type, "tiny")

    return write


def with_4_bits(original: Path, folder: Path) -> None:
    pytest.importorskip("bitsandbytes")
    shutil.copytree(original, folder)
    rounding = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    model = AutoModelForCausalLM.from_pretrained(original, quantization_config=rounding)
    model.save_pretrained(folder)


def changed(change: Callable[[Any], Any]) -> Callable[[Path, Path], None]:
    def write(original: Path, folder: Path) -> None:
        shutil.copytree(original, folder)
        model = load_model(original)
        with torch.no_grad():
            change(model)
        model.save_pretrained(folder)

    return write


def with_other_positions(model: Any) -> None:
    model.config.rope_parameters = {"rope_type": "default", "rope_theta": 100.0}


def split_otherwise(original: Path, folder: Path) -> None:
    shutil.copytree(original, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["merges"] = []
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


needs_llama_cpp = pytest.mark.skipif(find_spec("llama_cpp") is None, reason="no llama.cpp")
ROUNDED = (1e-9, 0.05)
CASES = {  # an export, the bounds of its divergence per token, whether texts have the same tokens
    "float32": (as_dtype(Dtype.float32), (0.0, 1e-12), True),
    "bfloat16": (as_dtype(Dtype.bfloat16), ROUNDED, True),
    "nf4": (with_4_bits, (1e-6, 0.5), True),
    "other positions": (changed(with_other_positions), (1e-5, 10), True),
    "another head": (changed(lambda model: model.lm_head.weight.mul_(-1)), (0.1, 100), True),
    "another tokenizer": (split_otherwise, (0.0, 1e-12), False),
}
FILES = {
    "gguf f32": (as_gguf(GgufType.f32), (0.0, 1e-6), True),
    "gguf q8_0": (as_gguf(GgufType.q8_0), ROUNDED, True),
}


@pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(name, marks=needs_llama_cpp) for name in FILES)]
)
def test_the_divergence_is_that_of_the_change(case: str, original: Path, tmp_path: Path) -> None:
    export, (least, most), splits_alike = {**CASES, **FILES}[case]
    export(original, tmp_path / "export")
    metrics, out = checked(original, tmp_path / "export", tmp_path)
    assert least <= metrics["kl_per_token"] <= metrics["kl_max"]
    assert metrics["kl_per_token"] <= most
    assert (metrics["same_first"] == 1) or least > 0
    assert (metrics["same_tokens"] == 1) == splits_alike
    records = [json.loads(line) for line in (out / "tokens.jsonl").read_text().splitlines()]
    assert len(records) == metrics["tokens"] > 2 * 24
    assert max(record["kl"] for record in records) == metrics["kl_max"]
    card = (out / "README.md").read_text()
    assert f"| divergence per token, mean, in nats | {metrics['kl_per_token']:.3g} |" in card


def test_the_card_of_the_export_keeps_its_text(original: Path, tmp_path: Path) -> None:
    as_dtype(Dtype.float32)(original, tmp_path / "export")
    (tmp_path / "export" / "README.md").write_text("# A model\n")
    _, out = checked(original, tmp_path / "export", tmp_path)
    assert (out / "README.md").read_text().startswith("# A model\n\n## Compared with the original")


def test_divergence_is_the_one_of_pytorch_and_impossible_tokens_add_nothing() -> None:
    one, two = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0))
    q, p = (logits.double().log_softmax(-1) for logits in (two, one))
    expected = torch.nn.functional.kl_div(q, p, reduction="none", log_target=True).sum(-1)
    assert divergence(one, two)[0] == pytest.approx(expected.tolist(), abs=1e-15)
    padded = [torch.nn.functional.pad(part, (0, 1), value=-torch.inf) for part in (one, two)]
    assert divergence(*padded)[0] == pytest.approx(expected.tolist(), abs=1e-15)


def alone(original: Path, folder: Path) -> None:
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")


def larger(original: Path, folder: Path) -> None:
    shutil.copytree(original, folder)
    write_model(folder, vocab_size=301)


MISTAKES: list[tuple[Callable[[Path, Path], None], str]] = [
    (alone, "export_it: .* has neither a whole model"),
    (larger, "export_it: the exported model has 301 tokens, the original 300"),
    (changed(lambda m: m.lm_head.weight.fill_(torch.nan)), "logits are not numbers"),
]
if find_spec("llama_cpp") is None:
    MISTAKES.append((as_gguf(GgufType.f32), "llama.cpp must be installed: pip install"))


@pytest.mark.parametrize(("export", "told"), MISTAKES)
def test_an_export_that_cannot_be_compared_is_one_sentence(
    export: Callable[[Path, Path], None], told: str, original: Path, tmp_path: Path
) -> None:
    export(original, tmp_path / "export")
    with pytest.raises(TemperError, match=told):
        checked(original, tmp_path / "export", tmp_path)
