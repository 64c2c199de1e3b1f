"""Preference pairs about images: from files to a trained model, with a tiny Idefics3."""

import base64
import io
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from step_output import Folder
from transformers.image_transforms import convert_to_rgb
from vision_model import write_vision_model

from pipeline import Artifact, File
from steps.data.formats.choice import FormatChoice
from steps.data.formats.preference import PreferenceFormat
from steps.data.images.finding import ImageColumn
from steps.data.images.image_table import ImageTable, write_images
from steps.data.images.images_of_rows import rows_with_images
from steps.data.images.pictures import picture, pixels
from steps.data.load.config import LoadConfig
from steps.data.load.loading import Load, Part, Reading, load_rows
from steps.data.load.shards import source_of
from steps.data.rows.parquet import read_rows
from steps.data.rows.rows import PreferenceRow
from steps.data.rows.tables import messages_from_column
from steps.data.tokens.config import TokenizeConfig, TooLong
from steps.evaluate import evaluate
from steps.evaluation.config import EvaluateConfig
from steps.export_hf import export_hf
from steps.import_model import import_model
from steps.kinds import Evaluation, Model, PairTokens, Preferences, ReferenceLogps
from steps.load_preferences import load_preferences
from steps.losses.dpo import Dpo
from steps.models.config import Dtype, LoraConfig
from steps.models.folders import load_model
from steps.reference_logprobs import reference_logprobs
from steps.scoring.config import Attention, ReferenceConfig
from steps.scoring.examples import read_pairs
from steps.scoring.logps import forward_backward
from steps.scoring.packing import make_pack
from steps.scoring.parity import check_packing
from steps.scoring.reference import read_reference
from steps.tokenize_preferences import tokenize_preferences
from steps.train_dpo import train_dpo
from steps.training.config import DpoConfig, OptimizerConfig

SIDES = ("chosen", "rejected")


def artifact(kind: type[Artifact], path: Path) -> Any:
    return kind(path, "", "")


def drawn(folder: Path, name: str, width: int, height: int) -> str:
    """Noise as a picture."""
    folder.mkdir(exist_ok=True)
    generator = np.random.default_rng(width * 1000 + height)
    noise = generator.integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / name)
    return f"pictures/{name}"


def asked(text: str, *, images: int = 1) -> list[dict[str, Any]]:
    """A prompt in parts, as data sets for processors have it."""
    parts = [{"type": "image"} for _ in range(images)]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vision_model(tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs with one image, two and none, that mark them in every way."""
    folder = tmp_path_factory.mktemp("rows")
    one = drawn(folder / "pictures", "one.png", 40, 20)
    two = drawn(folder / "pictures", "two.png", 16, 16)
    three = drawn(folder / "pictures", "three.jpg", 30, 50)
    sides = {"chosen": "A cat.", "rejected": "It is a dog!"}
    records = [
        {"id": "parts", "prompt": asked("What is it?"), "images": [one], **sides},
        {"id": "again", "prompt": asked("What is it?"), "images": [two], **sides},
        {"id": "two", "prompt": asked("Alike?", images=2), "images": [two, three], **sides},
        {"id": "spelled", "prompt": "See <image>: what?", "images": one, **sides},
        {"id": "before", "prompt": "What?", "images": [three], **sides},
        {"id": "none", "prompt": "No image.", "images": [], **sides},
    ]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "rows.jsonl").write_text(lines)
    return folder


def loaded(folder: Path, source: Path, **settings: Any) -> dict[str, Any]:
    config = LoadConfig(format=FormatChoice(images="images"), **settings)
    return dict(load_preferences.function(Folder(folder), File(str(source)), None, config) or {})


@pytest.fixture(scope="module")
def tokens(model: Path, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokens")
    loaded(folder / "rows", rows / "rows.jsonl")
    tokenized(folder, model)
    return folder / "tokens"


def tokenized(folder: Path, model: Path, **settings: Any) -> dict[str, Any]:
    return tokenize_preferences.function(  # pyright: ignore[reportReturnType]
        Folder(folder / "tokens"),
        artifact(Preferences, folder / "rows"),
        artifact(Model, model),
        TokenizeConfig(**settings),
    )


# --- loading -------------------------------------------------------------------------------------


def test_an_image_is_kept_once_and_known_by_its_bytes(rows: Path, tmp_path: Path) -> None:
    loaded(tmp_path / "out", rows / "rows.jsonl")
    table = read_rows(tmp_path / "out/train/images/images-00000.parquet")
    assert [(row["width"], row["height"]) for row in table] == [(40, 20), (16, 16), (30, 50)]
    found = {row["row"]: images(row) for row in read_rows(tmp_path / "out/train")}
    one, two, three = (row["sha256"] for row in table)
    assert found == {
        "parts": [one], "again": [two], "two": [two, three],
        "spelled": [one], "before": [three], "none": [],
    }  # fmt: skip
    kept = ImageTable(tmp_path / "out/train").content(one)
    assert kept == (rows / "pictures/one.png").read_bytes()


def images(record: dict[str, Any]) -> list[str]:
    messages = messages_from_column(record["prompt"])
    return [image["sha256"] for message in messages for image in message.get("images", ())]


def test_images_come_as_paths_bytes_objects_and_pillows_own(rows: Path, tmp_path: Path) -> None:
    from datasets import Dataset, Features, Sequence, Value
    from datasets import Image as ImageFeature

    path = rows / "pictures/one.png"
    kinds = {"prompt": Value("string"), "chosen": Value("string"), "rejected": Value("string")}
    record = {"prompt": "What?", "chosen": "yes", "rejected": "no"}
    with Image.open(path) as opened:
        given = [{**record, "images": [opened]}, {**record, "images": [{"path": str(path)}]}]
        features = Features({**kinds, "images": Sequence(ImageFeature())})
        Dataset.from_list(given, features).save_to_disk(str(tmp_path / "saved"))
    loaded(tmp_path / "out", tmp_path / "saved")
    table = read_rows(tmp_path / "out/train/images/images-00000.parquet")
    seen = [np.asarray(pixels(row["content"])) for row in table]
    with Image.open(path) as opened:
        assert all((found == np.asarray(opened)).all() for found in seen)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "L", "1", "CMYK"])
def test_transparent_images_are_on_white_as_processors_have_them(mode: str) -> None:
    """Else training sees the colours below, mostly black, and generation white."""
    every = np.arange(256, dtype=np.uint8).reshape(16, 16)
    drawn = Image.merge("RGBA", [*map(Image.fromarray, (every, every.T.copy(), every)),
                                 Image.fromarray(every[::-1].copy())])  # fmt: skip
    drawn = drawn.convert("RGB" if mode in ("P", "CMYK") else "RGBA").convert(mode)
    with io.BytesIO() as file:
        transparent = {"transparency": 3} if mode == "P" else {}
        drawn.save(file, "TIFF" if mode == "CMYK" else "PNG", **transparent)
        content = file.getvalue()
    with Image.open(io.BytesIO(content)) as opened:
        assert (np.asarray(pixels(content)) == convert_to_rgb(opened, return_numpy=True)).all()


def test_rows_whose_images_cannot_be_used_are_in_the_ledger(rows: Path, tmp_path: Path) -> None:
    shutil.copytree(rows / "pictures", tmp_path / "pictures")
    pictures = tmp_path / "pictures"
    (pictures / "cut.png").write_bytes((pictures / "one.png").read_bytes()[:300])
    (pictures / "text.png").write_text("no image")
    Image.new("1", (20_000, 4_000)).save(pictures / "huge.png")
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(pictures / "deep.png")
    in_base64 = base64.b64encode((pictures / "one.png").read_bytes()).decode()
    pair = {"chosen": "yes", "rejected": "no"}
    cases: dict[str, tuple[Any, Any, str]] = {
        "good": ("What?", ["pictures/one.png"], ""),
        "absent": ("What?", ["pictures/0.png"], "no image: images[0] is 'pictures/0.png': No such"),
        "null": ("What?", None, "no image: images is missing"),
        "far": ("What?", "https://a.example/b.png", "no image: images is 'https://a.example/b.png'"
                ": images are read beside data files on this machine; download them"),
        "base64": ("What?", f"data:image/png;base64,{in_base64}", ""),
        "lines": ("What?", f"data:image/png;base64,\n{in_base64[:76]}\r\n{in_base64[76:]}\n", ""),
        "broken": ("What?", "data:image/png;base64,???", "base64,???', which is no base64"),
        "bare": ("What?", in_base64, "…': too long for a path; an image as text begins as data:"),
        "number": ("What?", [3], "no image: images[0] is int, expected a path"),
        "cut": ("What?", ["pictures/cut.png"], "broken image: images[0] cannot be read: OSError"),
        "text": ("What?", ["pictures/text.png"], "is damaged or in none of the formats PNG, JPEG"),
        "deep": ("What?", ["pictures/deep.png"], "convert it to 8-bit RGB"),
        "huge": ("What?", ["pictures/huge.png"], "image too large: images[0] has 20000 x 4000"),
        "more": (asked("?", images=2), ["pictures/one.png"], "has 1 images, its prompt marks 2"),
        "spelled": ("<image> <image>", ["pictures/one.png"], "its prompt 2 <image>"),
        "mark": ("a \ufffc b", ["pictures/one.png"], "a text holds U+FFFC"),
        "own": ([{"role": "user", "content": [{"type": "image", "image": "x"}]}], [],
                "prompt[0].content[0] contains the image itself (image)"),
    }  # fmt: skip
    records = [
        {"id": name, "prompt": prompt, "images": value, **pair}
        for name, (prompt, value, _) in cases.items()
    ]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "rows.jsonl").write_text(lines)
    loaded(tmp_path / "out", tmp_path / "rows.jsonl", max_dropped=100)
    for entry in read_rows(tmp_path / "out/ledger.parquet"):
        expected = cases[entry["row"]][2]
        assert (entry["outcome"] == "kept") == (not expected), entry
        assert expected in f"{entry['reason']}: {entry['detail']}"
    assert len(read_rows(tmp_path / "out/train/images/images-00000.parquet")) == 1


def test_an_image_is_read_as_it_is_meant_to_be_looked_at(tmp_path: Path) -> None:
    with io.BytesIO() as written:
        exif = Image.Exif()
        exif[0x0112] = 6  # a camera that was held on its side
        Image.new("RGB", (40, 20)).save(written, format="JPEG", exif=exif)
        found = picture(written.getvalue(), "it")
    assert (found.width, found.height) == (20, 40)


def test_images_do_not_depend_on_kills(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steps.data.load.loading.ROWS_PER_SHARD", 2)
    source = source_of(str(rows / "rows.jsonl"))
    part = Part(source, PreferenceFormat(), images=ImageColumn("images"))

    def load(name: str, stop: int | None = None) -> Path:
        def progress(done: int, _: Any) -> None:
            if done == stop:
                raise KeyboardInterrupt

        wanted = Load(PreferenceRow, Reading("rows", (part,)))
        load_rows(wanted, tmp_path / name, tmp_path / f"{name}-scratch", progress)
        return tmp_path / name

    whole = load("whole")
    for stop in (2, 3, 5):
        with pytest.raises(KeyboardInterrupt):
            load("resumed", stop)
    resumed = load("resumed")
    files = sorted(path.relative_to(whole) for path in whole.rglob("*.parquet"))
    assert len(files) == 6  # three of rows, two of images: the third has seen them all; the ledger
    assert all((resumed / file).read_bytes() == (whole / file).read_bytes() for file in files)


# --- tokens --------------------------------------------------------------------------------------


def test_tokens_are_those_of_the_processor(model: Path, tokens: Path) -> None:
    from transformers import AutoProcessor

    processor: Any = AutoProcessor.from_pretrained(model)
    assert len(list(rows_with_images(tokens / "train"))) == 6
    for record in rows_with_images(tokens / "train"):
        for side in SIDES:
            ids = [*record["prompt_ids"], *record[f"{side}_ids"]]
            assert ids == through_processor(processor, record, side)["input_ids"][0].tolist()
            mask = [*record["prompt_mask"], *record[f"{side}_mask"]]
            trained = [index for index, is_trained in zip(ids, mask, strict=True) if is_trained]
            said = messages_from_column(record[side])[0]["content"]
            assert processor.tokenizer.decode(trained) == f"{said}<|end|>"


def through_processor(processor: Any, record: dict[str, Any], side: str) -> Any:
    """A row as transformers documents it: the processor's own template, tokens and pixels."""
    chat = [
        {"role": m["role"], "content": parts(m["content"])}
        for m in messages_from_column([*record["prompt"], *record[side]])
    ]
    text = processor.apply_chat_template(chat)
    seen = [image.pixels() for image in record["images"]]
    return processor(text=text, images=[seen] if seen else None, return_tensors="pt")


def parts(content: str) -> list[dict[str, str]]:
    *marked, text = content.split("\ufffc")
    found: list[dict[str, str]] = []
    for before in marked:
        found += [{"type": "text", "text": before}, {"type": "image"}]
    return [*found, {"type": "text", "text": text}]


def test_equal_tokens_over_other_images_are_other_pairs(model: Path, tmp_path: Path) -> None:
    first = drawn(tmp_path / "pictures", "first.png", 20, 20)
    second = drawn(tmp_path / "pictures", "second.bmp", 20, 20)
    Image.new("RGB", (20, 20), "red").save(tmp_path / "pictures/second.bmp")
    lines = [
        json.dumps({"prompt": "?", "chosen": "a", "rejected": "b", "images": [path]})
        for path in (first, second)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    loaded(tmp_path / "rows", tmp_path / "rows.jsonl")
    tokenized(tmp_path, model)
    one, other = read_rows(tmp_path / "tokens/train")
    assert one["prompt_ids"] == other["prompt_ids"]
    assert one["pair_id"] != other["pair_id"]


def test_no_limit_cuts_an_image(rows: Path, model: Path, tmp_path: Path) -> None:
    loaded(tmp_path / "rows", rows / "rows.jsonl")
    tokenized(tmp_path, model, max_prompt_length=20, prompt_too_long=TooLong.keep_end)
    dropped = {
        entry["row"]: entry["detail"]
        for entry in read_rows(tmp_path / "tokens/ledger.parquet")
        if entry["outcome"] == "dropped"
    }
    assert set(dropped) == {"parts", "two", "spelled", "before", "again"}
    assert set(dropped.values()) == {"cut to the limits, the prompt would lose an image"}


def test_a_model_that_sees_nothing_is_given_no_images(
    rows: Path, tiny_model: Path, tmp_path: Path
) -> None:
    loaded(tmp_path / "rows", rows / "rows.jsonl")
    tokenized(tmp_path, tiny_model)
    entries = read_rows(tmp_path / "tokens/ledger.parquet")
    assert [entry["row"] for entry in entries if entry["outcome"] == "kept"] == ["none"]
    assert "the model's folder has no processor of images" in entries[0]["detail"]


# --- scoring and training ------------------------------------------------------------------------


@pytest.mark.parametrize("attention", [Attention.packed, Attention.padded])
def test_logps_and_gradients_are_those_of_transformers(
    attention: Attention, model: Path, tokens: Path
) -> None:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    processor: Any = AutoProcessor.from_pretrained(model)
    plain: Any = AutoModelForImageTextToText.from_pretrained(model, dtype=torch.float64)
    records = list(rows_with_images(tokens / "train"))
    expected = torch.stack([row_logps(plain, processor, record) for record in records])
    margins = expected[:, 0] - expected[:, 1]
    margins.sum().backward()

    ours = load_model(model, Dtype.float64)
    groups = read_pairs(records, 300)
    assert check_packing(ours, groups, attention).notice is None
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64)
    scored = forward_backward(ours, make_pack(groups), lambda logps, _: (logps.sums() @ signs, {}))
    assert torch.allclose(scored.logps, expected.detach(), atol=1e-5)
    wanted = dict(plain.named_parameters())
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None, name
        assert torch.allclose(parameter.grad, wanted[name].grad, atol=1e-6), name
    seeing = [p for name, p in ours.named_parameters() if "vision_model" in name]
    assert any(bool(p.grad.abs().max() > 0) for p in seeing if p.grad is not None)


def row_logps(plain: Any, processor: Any, record: dict[str, Any]) -> torch.Tensor:
    """The logps of both sides, by a plain forward over what the processor makes of them."""
    sums = []
    for side in SIDES:
        given = through_processor(processor, record, side)
        given.pop("attention_mask")
        given = {n: v.double() if v.is_floating_point() else v for n, v in given.items()}
        logps = plain(**given).logits[0].log_softmax(-1)
        ids, start = given["input_ids"][0], len(record["prompt_ids"])
        sums.append(logps[range(start - 1, len(ids) - 1), ids[start:]].sum())
    return torch.stack(sums)


def test_from_files_to_a_model_to_hand_over(model: Path, tokens: Path, tmp_path: Path) -> None:
    import_model.function(Folder(tmp_path / "base"), File(str(model)))
    base, pairs = artifact(Model, tmp_path / "base"), artifact(PairTokens, tokens / "train")
    config = DpoConfig(
        loss=Dpo(), batch_size=3, epochs=2, optimizer=OptimizerConfig(learning_rate=1e-3)
    )
    scored = reference_logprobs.function(Folder(tmp_path / "ref"), pairs, base, config.reference())
    assert scored
    assert "notices" not in scored  # packed, which was tried
    reference = artifact(ReferenceLogps, tmp_path / "ref")
    summary = train_dpo.function(Folder(tmp_path / "dpo"), pairs, base, reference, config)
    assert summary
    assert summary["first"]["loss"] == math.log(2)
    assert summary["final"]["loss"] < math.log(2)

    trained = artifact(Model, tmp_path / "dpo")
    before = evaluate.function(Folder(tmp_path / "before"), pairs, base)
    assert before
    assert (
        "models that read images are evaluated by their log-probabilities" in before["notices"][0]
    )
    asks_nothing = EvaluateConfig(sample_prompts=0)
    baseline = artifact(Evaluation, tmp_path / "before")
    after = evaluate.function(
        Folder(tmp_path / "after"), pairs, trained, asks_nothing, baseline, Dpo()
    )
    assert after
    assert "notices" not in after
    assert after["eval_rewards/margins"]["value"] > 0

    export_hf.function(
        Folder(tmp_path / "out"), trained, artifact(Evaluation, tmp_path / "after"), card()
    )
    exported = artifact(Model, tmp_path / "out")
    reference_logprobs.function(Folder(tmp_path / "again"), pairs, exported, ReferenceConfig())
    groups = read_pairs(rows_with_images(tokens / "train"), 300)
    folders = (tmp_path / "after", tmp_path / "again")
    one, other = (read_reference(folder).of(groups) for folder in folders)
    assert torch.equal(one, other)


@pytest.mark.slow
def test_adapters_are_trained_in_the_tower_too_and_merged(
    model: Path, tokens: Path, tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForImageTextToText

    base, pairs = artifact(Model, model), artifact(PairTokens, tokens / "train")
    optimizer = OptimizerConfig(learning_rate=1e-2)
    lora = LoraConfig(r=4, merged=True)
    config = DpoConfig(batch_size=3, epochs=2, lora=lora, optimizer=optimizer)
    reference_logprobs.function(Folder(tmp_path / "ref"), pairs, base, config.reference())
    reference = artifact(ReferenceLogps, tmp_path / "ref")
    summary = train_dpo.function(Folder(tmp_path / "dpo"), pairs, base, reference, config)
    assert summary
    assert summary["final"]["loss"] < summary["first"]["loss"] == math.log(2)

    adapted = AutoModelForImageTextToText.from_pretrained(model)
    adapted = PeftModel.from_pretrained(adapted, tmp_path / "dpo" / "adapter").merge_and_unload()
    merged = AutoModelForImageTextToText.from_pretrained(tmp_path / "dpo").state_dict()
    before = AutoModelForImageTextToText.from_pretrained(model).state_dict()
    for name, weights in adapted.state_dict().items():
        assert torch.equal(weights, merged[name]), name
    moved = {name.split(".")[1] for name in merged if not torch.equal(merged[name], before[name])}
    assert {"vision_model", "text_model"} <= moved


def card() -> Any:
    from steps.export.card import ModelCard

    return ModelCard("Seen", "tiny", "rows")


def test_images_that_are_lost_or_changed_are_never_passed_over(
    model: Path, rows: Path, tokens: Path, tmp_path: Path
) -> None:
    def scored(split: Path) -> None:
        reference_logprobs.function(
            Folder(tmp_path / "ref"), artifact(PairTokens, split), artifact(Model, model)
        )

    lost = tmp_path / "lost"
    shutil.copytree(tokens / "train", lost)
    shutil.rmtree(lost / "images")
    with pytest.raises(ValueError, match="placeholders of images, and the model makes 0 features"):
        scored(lost)
    changed = tmp_path / "changed"
    shutil.copytree(tokens / "train", changed)
    file = changed / "images/images-00000.parquet"
    content = bytearray(file.read_bytes())
    content[content.index(b"IHDR") + 60] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"images-00000\.parquet is damaged"):
        scored(changed)
    fewer = tmp_path / "fewer"
    shutil.copytree(lost, fewer)
    kept = picture((rows / "pictures/two.png").read_bytes(), "it")
    write_images(fewer / "images/images-00000.parquet", [kept])
    with pytest.raises(ValueError, match="lacks the image"):
        scored(fewer)
