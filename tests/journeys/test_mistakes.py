"""The mistakes of a first hour, each of which is told in one sentence that says what to do.

A message is short, is no traceback, and names the remedy as it is typed. The traceback of a step is
in its log. Mistakes on the command line and in Python are made in this process; those that only a
worker meets are made in one run, whose steps all fail.
"""

import errno
import gzip
import io
import json
import multiprocessing
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import script, temper
from mistaken_steps import (
    Backend,
    Training,
    mistaken,
    needs_a_package,
    one_part,
    overwrites,
    trained,
    use,
)
from places import MODEL_FILES, model_for_plans
from rich.console import Console
from typer.testing import CliRunner
from users import not_as_root
from workers_here import instead_of_processes

from pipeline import (
    File,
    HubModel,
    Metrics,
    Output,
    Step,
    Store,
    TemperError,
    adopt,
    look_again,
    run,
    step,
    tune,
)
from pipeline.cli import app
from pipeline.experiment import ExperimentConfig, main
from pipeline.launchers.environment import import_path
from pipeline.running.attempts import Executor
from pipeline.running.session import RunFailed
from pipeline.uncaught.user_errors import message_of
from steps.data.formats.choice import FormatChoice
from steps.data.load.config import LoadConfig
from steps.data.rows.jsonl import write_json_lines
from steps.evaluate import evaluate
from steps.import_model import import_model
from steps.kinds import Model, Preferences
from steps.load_preferences import load_preferences
from steps.load_unpaired import load_unpaired
from steps.losses.dpo import Dpo
from steps.report import report
from steps.sources import data_at, refuse_no_model
from steps.tokenize_preferences import tokenize_preferences
from steps.train_sft import train_sft
from steps.training.config import DpoConfig

LONGEST_MESSAGE = 500
BROKEN_MODELS = {
    "cut-off": ("model.safetensors", b"\xff" + bytes(7) + b"{}"),
    "pointer": ("model.safetensors", b"version https://git-lfs.github.com/spec/v1\n"),
    "lacks-shards": ("model.safetensors.index.json", b'{"weight_map": {"a": "2.safetensors"}}'),
    "broken-config": ("config.json", b"{"),
    "tokenless": ("tokenizer.json", b"version https://git-lfs.github.com/spec/v1\n"),
    "halved": ("tokenizer.json", b'{"model": {'),
    "quantised": ("config.json", b'{"quantization_config": {"quant_method": "gptq"}}'),
    "typeless": ("config.json", b'{"hidden_size": 64}'),
    "stale": ("model.safetensors.index.json", b'{"weight_map": {"a": "model-1.safetensors"}}'),
    "endless": ("generation_config.json", b'{"eos_token_id": [2, "</s>"]}'),
}
PAIRS = [{"prompt": f"Question {n}?", "chosen": "Yes.", "rejected": "No."} for n in range(20)]
CHAT = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
COLUMNS = [{"question": f"Question {n}?", "good": "Yes.", "bad": "No."} for n in range(20)]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder: data in all states, and what is no model."""
    folder = tmp_path_factory.mktemp("mistakes")
    write(folder / "pairs.jsonl", PAIRS)
    write(folder / "columns.jsonl", COLUMNS)
    write(folder / "other.jsonl", [{"foo": "1", "bar": "2", "baz": "3"}] * 9)
    write(folder / "one.jsonl", PAIRS[:1])
    write(folder / "chats.jsonl", [{"messages": [*CHAT]}] * 9)
    write(folder / "prompts.jsonl", [{"prompt": "Why?"}] * 9)
    (folder / "empty.jsonl").touch()
    (folder / "broken.jsonl").write_text("these are not rows\n" * 3)
    (folder / "list.jsonl").write_text(json.dumps(PAIRS))
    (folder / "lists.jsonl").write_text("".join(f"{json.dumps([*p.values()])}\n" for p in PAIRS))
    (folder / "lists.json").write_text(json.dumps([[*pair.values()] for pair in PAIRS]))
    (folder / "commas.jsonl").write_text("".join(f"{json.dumps(row)},\n" for row in PAIRS))
    (folder / "joined.jsonl").write_text(",\n".join(map(json.dumps, PAIRS)))
    (folder / "indented.jsonl").write_text("\n".join(json.dumps(row, indent=1) for row in PAIRS))
    (folder / "dicts.jsonl").write_text("".join(f"{row}\n" for row in PAIRS))
    (folder / "latin-1.jsonl").write_text('{"prompt": "é"}\n', "latin-1")
    (folder / "latin-1.csv").write_text("prompt,chosen,rejected\n" + "é,è,à\n" * 9, "latin-1")
    (folder / "tabs.csv").write_text("prompt\tchosen\trejected\n" + "q\tYes, yes.\tNo.\n" * 9)
    (folder / "utf-16.csv").write_text("prompt,chosen,rejected\n" + "q,Yes.,No.\n" * 9, "utf-16")
    (folder / "json.parquet").write_bytes((folder / "pairs.jsonl").read_bytes())
    (folder / "loop").symlink_to("loop")
    labels = [{"prompt": "q", "completion": "a", "label": "perhaps"}]
    write(folder / "labels.jsonl", labels * 9)
    for codec in ("utf-16", "utf-32"):
        (folder / f"{codec}.jsonl").write_text((folder / "pairs.jsonl").read_text(), codec)
    (folder / "packed.jsonl").write_bytes(gzip.compress((folder / "pairs.jsonl").read_bytes()))
    (folder / "pairs.csv").write_text("prompt,chosen,rejected\n" + "q,Yes.,No.\n" * 9)
    (folder / "semicolons.csv").write_text("prompt;chosen;rejected\n" + "q;Yes.;No.\n" * 9)
    (folder / "halves.csv").write_text("prompt;chosen;rejected\n" + "q;Yes, yes.;No.\n" * 9)
    (folder / "nested.json").write_text(json.dumps({"version": 1, "data": PAIRS}))
    (folder / "pairs.xlsx").write_text("no rows")
    (folder / "pairs.ndjson").write_text((folder / "pairs.jsonl").read_text())
    (folder / "notes.md").write_text("# Notes")
    (folder / "fake.gguf").write_text("no tensors")
    (folder / "docs").mkdir()
    (folder / "emptied").mkdir()
    (folder / "docs" / "index.md").write_text("# Docs")
    for name, files in {
        "unweighted": ["config.json", "tokenizer.json"],
        "speechless": ["config.json", "model.safetensors"],
        "adapter": ["tokenizer.json", "model.safetensors"],
        "untemplated": ["config.json", "tokenizer.json", "model.safetensors"],
        "models/good": ["config.json", "tokenizer.json", "model.safetensors"],
    }.items():
        (folder / name).mkdir(parents=True)
        for file in files:
            (folder / name / file).write_bytes(MODEL_FILES[file])
    (folder / "adapter" / "adapter_config.json").write_text("{}")
    (folder / "untemplated" / "tokenizer_config.json").write_text("{}")
    for name, (file, content) in BROKEN_MODELS.items():
        shutil.copytree(folder / "models" / "good", folder / name)
        (folder / name / file).write_bytes(content)
    (folder / "stale" / "model-1.safetensors").write_bytes(MODEL_FILES["model.safetensors"])
    return folder


def require_message(text: str, *remedies: str) -> None:
    """Short, no traceback, and with what to do."""
    assert "Traceback" not in text
    assert 'File "' not in text
    assert len(text) <= LONGEST_MESSAGE, text
    for remedy in remedies:
        assert remedy in text, text


# --- on the command line -----------------------------------------------------------------------

COMMAND_LINE: list[tuple[list[str], list[str]]] = [
    (["dpo.loss.bta=1"], ["dpo.loss.bta", "did you mean dpo.loss.beta"]),
    (["dpo.loss.beta=much"], ["override dpo.loss.beta=much; Value 'much' of type 'str' could not"]),
    (["dpo.loss.beta=0,1"], ["dpo.loss.beta=0,1 are several values: with -m each is a job"]),
    (["dpo/lora=qlora"], ["did you mean dpo/lora=lora with dpo.lora.quantization?"]),
    (
        ["num_epochs=3", "dpo.bta=1", "dpo.loss.nope=2"],
        ["unknown config keys: num_epochs (did you mean", "dpo.bta (did you", "dpo.loss.nope ("],
    ),
    (["data.path=a=(b"], ["the settings cannot be read: data.path=a=(b; "]),
    (["+dpo.bta=1"], ["dpo.bta"]),
    (["dpo.loss.beta", "0.1"], ["did you mean dpo.loss.beta=0.1?"]),
    (["pairs.jsonl"], ["did you mean data.path=pairs.jsonl?"]),
    (["dpo=1"], ["dpo is no single setting; set one of it, as in dpo."]),
    (["=1"], ["unknown config key ''"]),
    (["dpo/optimizer=adam"], ["set one of it, as in dpo.optimizer.learning_rate="]),
    (["dpo.loss.Beta=1"], ["did you mean dpo.loss.beta=1?"]),
    (["launcher.use=[]"], ["use names no engine"]),
    (["tokenize.max_length=0"], ["must be a whole number of at least 1, got 0"]),
    (["dpo/los=ipo"], ["did you mean dpo/loss=ipo?"]),
    (["dpo/loss="], ["unknown choice dpo/loss=; known: "]),
    (["dpo.dtype=bf16"], ["Invalid value 'bf16', expected one of [float32, bfloat16, float64]"]),
    (["dpo.lora=true"], ["dpo.lora is a choice: dpo/lora=lora"]),
    (["--dry-run"], ["--plan shows what would run"]),
    (["--resume"], ["goes on by itself"]),
    (["packing=true"], ["leave it out, since rows are packed without padding"]),
    (["--deepspeed", "zero3.json"], ["with launcher.steps.STEP.gpus=8"]),
    (["dpo.push_to_hub=true"], ["temper push NAME OWNER/MODEL"]),
    (["dpo.warmup_ratio=0.1"], ["did you mean dpo.optimizer.warmup_fraction"]),
    (["sft.micro_batch_size=2"], ["batch_size is that of a whole optimiser step"]),
    (["sft.cosine_min_lr_ratio=0.1"], ["did you mean sft.optimizer.final_fraction=0.1?"]),
    (["lora=true"], ["did you mean dpo/lora=lora or sft/lora=lora?"]),
    (["finetuning_type=lora"], ["did you mean dpo/lora=lora or sft/lora=lora?"]),
    (["data.path=ünknown ä.jsonl"], ["ünknown ä.jsonl does not exist"]),
    (["data.path=loop"], ["loop: it is a link to loop, where nothing is"]),
    (["data.path=/dev/null"], ["null is not a regular file", "write its content to a file"]),
    (["top_p=0.9"], ["did you mean evaluate.sampling.top_p=0.9 or ", "answering.top_p=0.9?"]),
    (["dpo.top_k=20"], ["or answering.top_k=20?"]),
    (["answering.top_p=0.9"], ["answering: top_p is 0.9, but at temperature 0"]),
    (["rl.top_p=0.9"], ["online training draws from all tokens"]),
    (["gradient_accumulation_steps=8"], ["batch_size is that of a whole optimiser step"]),
    (["rpo_alpha=1"], ["did you mean dpo.loss.nll_weight=1?"]),
    (["fp16=true"], ["dtype is float32, or bfloat16"]),
    (["dpo.loss.beta=-1"], ["dpo.loss: beta must be above 0, got -1"]),
    (["dpo.loss=simpo"], ["dpo.loss is a choice: dpo/loss=simpo"]),
    (["dpo/loss=dop"], ["unknown choice dpo/loss=dop", "dpo"]),
    (["dpo.lora.r=8"], ["did you mean dpo/lora=lora dpo.lora.r=8?"]),
    (["scale=huge"], ["scale=huge", "demo, full, own, smoke"]),
    (["jobs=0"], ["jobs must be at least 1"]),
    (["jobs=many"], ["jobs=many"]),
    (["force=train_dpo"], ["force is a list: force=[train_dpo]"]),
    (["force=[train]"], ["no step train", "train_dpo"]),
    (["only=[train]"], ["no step train", "train_dpo"]),
    (["sinks=[mlflow]"], ["mlflow", "known: wandb, tensorboard"]),
    (["data.path=nope.jsonl"], ["nope.jsonl does not exist", "check the path"]),
    (["data.path=empty.jsonl"], ["empty.jsonl has no rows"]),
    (["data.path=pairs.xlsx"], [".xlsx is not read; convert it", ".csv"]),
    (["data.path=notes.md"], ["name it by what it holds: .jsonl"]),
    (["data.path=nope*.jsonl"], ["nope*.jsonl", "check the path"]),
    (["data.path=null"], ["data.path=FILE.jsonl"]),
    (
        ["data=house_style", "data.path=pairs.jsonl"],
        [
            "would have data.test_path, data.max_train, data.max_test of the demo",
            "write data=mine data.path=pairs.jsonl",
        ],
    ),
    (
        ["data=house_style", "data.path=pairs.jsonl", "data.test_path=null", "data.max_test=9"],
        ["would have data.max_train of the demo", "write data=mine data.path=pairs.jsonl"],
    ),
    (
        ["data=house_style", "data.path=null", "data.hub=owner/name"],
        ["of the demo", "write data=mine data.path=null data.hub=owner/name"],
    ),
    (
        ["data=house_style", "data.path=pairs.jsonl", "data.max_train=24"],
        ["would have data.test_path, data.max_test of the demo"],
    ),
    (["data.path=pairs.jsonl", "data.hub=a/b"], ["set one of data.path"]),
    (
        ["data=mine", "data.path=pairs.jsonl", "data.test_fraction=0"],
        ["holds out no row", "name a file with data.test_path"],
    ),
    (["data.test_fraction=2"], ["test_fraction must be in [0, 1)"]),
    (["data.format=preferences"], ["unknown format 'preferences'", "did you mean preference"]),
    (["data.fields={prompt: question}"], ["set format as well as fields"]),
    (
        ["data.format=preference", "data.fields={promt: question}"],
        ["has no field promt", "prompt, chosen, rejected"],
    ),
    (["model=local", "model.path=nope"], ["nope does not exist", "check the path"]),
    (["model=local", "model.path=gpt2"], ["gpt2 does not exist", "model.hub=OWNER/NAME"]),
    (["model.path='https://huggingface.co/a/b'"], ["use model=hub model.hub=a/b"]),
    (["data.path=emptied"], ["the folder holds no data file"]),
    (["model=local", "model.path=docs"], ["docs is no model: it has no config.json", "model.path"]),
    (["model=local", "model.path=/tmp"], ["/tmp is no model: it has no config.json"]),
    (["model=local", "model.path=models"], ["did you mean models/good?"]),
    (["model=local", "model.path=notes.md"], ["neither a folder nor a .gguf file"]),
    (["model=local", "model.path=unweighted"], ["no weights (model.safetensors)"]),
    (["model=local", "model.path=speechless"], ["no tokenizer (tokenizer.json)"]),
    (["model.path=cut-off"], ["model.safetensors that is no safetensors file, or is cut off"]),
    (["model.path=pointer"], ["git-lfs' pointer to model.safetensors (`git lfs pull`"]),
    (["model.path=lacks-shards"], ["lacks 2.safetensors, which model.safetensors.index.json"]),
    (["model.path=broken-config"], ["a config.json that is no JSON object"]),
    (["model.path=adapter"], ["holds an adapter without its base", "merge_and_unload"]),
    (["data.path=models/good"], ["is a model and no data: model=local model.path=models/good"]),
    (["model.chat_template=docs"], ["model.chat_template=docs is a folder"]),
    (["model.path=typeless"], ["a config.json that names no model_type"]),
    (["model.path=stale"], ["model.safetensors beside shards", "delete the one that is stale"]),
    (["model.path=endless"], ["eos_token_id has '</s>', which is no number"]),
    (["model.path=tokenless"], ["git-lfs' pointer to tokenizer.json"]),
    (["model.path=untemplated"], ["no chat template", "a Jinja file with model.chat_template"]),
    (["model.path=halved"], ["a tokenizer.json that is no JSON object, or is cut off"]),
    (["model.path=quantised"], ["weights that gptq has quantised"]),
    (["model.path=fake.gguf"], ["fake.gguf is no GGUF file", "download it again"]),
    (
        ["model=local", "model.path=HuggingFaceTB/SmolLM2-135M"],
        ["model=hub model.hub=HuggingFaceTB/SmolLM2-135M"],
    ),
    (["model.path=docs", "model.hub=a/b"], ["set one of model.path, model.hub"]),
    (["store=/proc/store"], ["cannot write to the store /proc/store"]),
    (["data.path='https://huggingface.co/datasets/a/b'"], ["a page of the Hub", "data.hub=a/b"]),
    (["data.path='foo://x/y.jsonl'"], ["there is no foo://"]),
    (["store='foo://x'"], ["store 'foo://x'", "gs://BUCKET/PATH"]),
    (["launcher.steps.train_dp.gpus=1"], ["launcher.steps.train_dp", "did you mean train_dpo?"]),
    (["launcher.steps.train_dpo.gpu=1"], ["gpu is none of gpus", "did you mean gpus?"]),
    (["launcher.steps.train_dpo.memory='3'"], ["give it as in 64GiB"]),
    (
        ["--plan", "dpo.compile_layers=true", "launcher.steps.train_dpo.processes=2"],
        ["train_dpo would run in 2 processes (processes=2)", "compile_layers is for one device"],
    ),
    (["launcher.steps.train_dpo.gpus=64"], ["train_dpo asks for gpus=64", "ask for less"]),
    (["launcher.use=[pbs]"], ["pbs", "local, slurm, ray"]),
    (["scheduler=http://127.0.0.1:9"], ["does not answer", "leave out scheduler="]),
    (["dpo/loss=ipo", "dpo.loss.label_smoothing=0.1"], ["config key 'dpo.loss.label_smoothing'"]),
    (["dpo/loss=combined"], ["losses must name at least one loss"]),
    (["dpo.keep_best=eval_loss"], ["keep_best needs eval_every_steps"]),
    (["model.path=null"], ["set one of model.path, model.hub, model.package"]),
    (
        ["model.path=null", "model.package=no_such", "model.file=x", "model.install='pip it'"],
        ["install it with: pip it"],
    ),
    (
        ["data.path=null", "data.hub=owner/name"],
        ["cannot find out which commit the dataset owner/name has at revision 'main'"],
    ),
]


@pytest.mark.usefixtures("code_stays")
def test_a_sink_that_is_not_there_is_told_instead_of_a_plan(repository: Path) -> None:
    said = script(repository / "experiments/dpo_arithmetic.py", "sinks=[wandbb]", "--plan")
    require_message(said.error, "sinks", "did you mean wandb?")
    assert not said.out


@pytest.mark.usefixtures("code_stays")
@pytest.mark.parametrize(("typed", "remedies"), COMMAND_LINE, ids=lambda case: " ".join(case))
def test_a_mistake_on_the_command_line(
    typed: list[str],
    remedies: list[str],
    folder: Path,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = ["store=store", "data=mine", "data.path=pairs.jsonl", "model=local"]
    usual += ["model.path=models/good", "-q"]
    named = {setting.partition("=")[0] for setting in typed}
    kept = [setting for setting in usual if setting.partition("=")[0] not in named]
    monkeypatch.chdir(folder)
    said = script(repository / "experiments/dpo_ultrafeedback.py", *kept, *typed)
    require_message(said.error, *remedies)


# --- in Python ---------------------------------------------------------------------------------

PYTHON: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "no such file": (lambda: load_preferences(File("nope.jsonl")), ["does not exist", "the path"]),
    "a text for a file": (lambda: load_preferences("pairs.jsonl"), ["pass File('pairs.jsonl')"]),
    "a text for a model": (
        lambda: import_model("HuggingFaceTB/SmolLM2-135M"),
        ["HubModel('HuggingFaceTB/SmolLM2-135M')"],
    ),
    "a Hub name for a folder": (
        lambda: import_model(File("HuggingFaceTB/SmolLM2-135M")),
        ["HubModel('HuggingFaceTB/SmolLM2-135M')"],
    ),
    "no model": (lambda: import_model(File("docs")), ["no config.json"]),
    "a branch without a hub": (lambda: HubModel("owner/name"), ["40-digit commit"]),
    "the wrong step": (
        lambda: train_sft(load_preferences(File("pairs.jsonl")), init=model()),
        ["train_sft(", "Preferences"],
    ),
    "the wrong order": (lambda: tokenize_preferences(model(), tokenizer=model()), ["Preferences"]),
    "the wrong config": (
        lambda: evaluate(tokens()["test"], model=model(), config=DpoConfig()),
        ["takes EvaluateConfig", "was given a DpoConfig"],
    ),
    "an unknown argument": (
        lambda: load_preferences(File("pairs.jsonl"), fraction=0.5),
        ["fraction", "it takes train, test, config"],
    ),
    "a setting out of range": (lambda: Dpo(beta=-1), ["beta must be above 0"]),
    "a misspelt format": (lambda: FormatChoice("preferences"), ["did you mean preference"]),
    "a list of results": (lambda: report([evaluation()]), ["give a dict with a name for each"]),
    "a part of a list": (lambda: as_any(tokens())[0], ["as in ['train']"]),
    "a part that the kind lacks": (lambda: task()["training"], ["has no part", "sft, test, train"]),
    "a bare step": (lambda: run(as_any(evaluation())), ["as a list or a dict"]),
    "a text for steps": (lambda: run([evaluation()], force="evaluate"), ["names of steps"]),
    "an unknown step": (lambda: run([evaluation()], force=["sft"]), ["no step sft"]),
    "an unknown sink": (lambda: run([evaluation()], sinks=["mlflow"]), ["wandb, tensorboard"]),
    "a store in memory": (lambda: run([evaluation()], "memory://x"), ["name a folder or a bucket"]),
    "a missing package": (lambda: run([needs_a_package()]), ["pip install no_such_package"]),
    "a choice that needs a package": (
        lambda: run([trained(Training(Backend()))]),
        ["trained needs the package no_such_package", "pip install no_such_package"],
    ),
    "a setting that needs a package": (
        lambda: run([trained(Training(rounded=True))]),
        ["trained needs the package no_such_package", "pip install no_such_package"],
    ),
    "too much asked": (lambda: run([mistaken("gpus").on(gpus=64)]), ["ask for less"]),
    "nobody's resource": (lambda: as_any(mistaken("x")).on(gpu=1), ["gpu is none of gpus"]),
    "a store that is no text": (lambda: run([evaluation()], as_any(3)), ["store=3"]),
    "a launcher's name": (
        lambda: run([evaluation()], launcher=as_any("slurm")),
        ["give LauncherConfig(use="],
    ),
    "an experiment that is called": (lambda: main(as_any({})), ["takes the function", "uncalled"]),
    "a config that is no dataclass": (lambda: main(undecorated), ["put @dataclass above it"]),
    "a loss that is no dataclass of its own": (
        lambda: evaluate(tokens()["test"], model=model(), loss=Undeclared()),
        ["Undeclared.shift is no field: put @dataclass above the class"],
    ),
    "an experiment of two configs": (lambda: main(as_any(of_two)), ["takes its config alone"]),
    "no steps": (lambda: run({}), ["no step is wanted"]),
    "an uncalled step": (lambda: run({"r": as_any(mistaken)}), ["uncalled: write mistaken(…)"]),
    "an uncalled input": (lambda: use(as_any(mistaken)), ["call it, as in mistaken(…)"]),
    "a part for a result": (lambda: run({"r": as_any(tokens()["test"])}), ["name a whole step"]),
    "a number for a step": (lambda: run({"r": as_any(3)}), ["which is no step"]),
    "a dict for a config": (
        lambda: evaluate(tokens()["test"], model=model(), config=as_any({"seed": 1})),
        ["takes EvaluateConfig", "write EvaluateConfig(NAME=VALUE)"],
    ),
    "a class for an instance": (lambda: mistaken(as_any(DpoConfig)), ["write DpoConfig(…)"]),
    "a generator": (lambda: mistaken(as_any(n for n in "ab")), ["pass a list of it"]),
    "an empty folder": (lambda: adopt("emptied"), ["is a folder without files"]),
    "a step's name that is taken": (lambda: shadowed(), ["defines several steps twice"]),
    "nonsense asked": (lambda: mistaken("gpus").on(memory="lots"), ["memory"]),
}


@step
def twice(out: Output) -> Metrics:  # pyright: ignore[reportRedeclaration]
    return {}


shadowed = twice


@step
def twice(out: Output) -> Metrics:
    return {"n": 2}


def change(loss: Any) -> None:
    loss.beta = 0.2


class Undecorated(ExperimentConfig):
    beta: float = 0.1


class Undeclared(Dpo):
    shift: float = 0.5


def of_two(cfg: ExperimentConfig, other: int) -> dict[str, Step]:
    return {}


def undecorated(cfg: Undecorated) -> dict[str, Step]:
    return {}


def as_any(step: Any) -> Any:
    """What a type checker would refuse, which not everybody asks."""
    return step


def model() -> Step:
    return adopt("models/good", Model)


def tokens() -> Step:
    return tokenize_preferences(adopt("docs", Preferences), tokenizer=model())


def evaluation() -> Step:
    return evaluate(tokens()["test"], model=model(), loss=DpoConfig().loss)


def task() -> Step:
    from steps.make_arithmetic import make_arithmetic

    return make_arithmetic()


@pytest.mark.parametrize("mistake", PYTHON)
def test_a_mistake_in_python(mistake: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, remedies = PYTHON[mistake]
    monkeypatch.chdir(folder)
    with pytest.raises((TemperError, ValueError, TypeError, AttributeError)) as raised:
        make()
    told = message_of(raised.value)
    assert told is not None, raised.value
    require_message(told, *remedies)


# --- in a step ---------------------------------------------------------------------------------

BUGS = {
    "a bug": ["KeyError: 'txt'", "mistaken_steps.py, line", 'return len(row["txt"])'],
    "a library's error": ["JSONDecodeError", 'json.loads("{")'],
    "an assertion": ["AssertionError: there are two rows", "mistaken_steps.py, line"],
    "a missing package": ["No module named 'no_such_package'", "import no_such_package"],
}
MESSAGES = {
    "a missing extra": ["math_verify is not installed here: pip install"],
    "its own message": ["the rows have no margin; add one, or set margin=0"],
    "its own foreseen error": ["the rows have no weight; add one with weight="],
    "a full disk": ["no space is left on a disk", "store=FOLDER"],
    "a full disk that a library met": ["no space is left on a disk", "store=FOLDER"],
    "no memory": ["not enough memory", "tokens_per_forward"],
    "an exit": ["the step called sys.exit(3)", "return its metrics instead"],
    "an interrupt": ["the step raised KeyboardInterrupt; return its metrics instead"],
    "the end of a generator": ["the step raised GeneratorExit: no rows are left; return its"],
    "an interval upside down": ["share is an interval from 0.6 to 0.4", "low is above its high"],
    "a number beyond floats": ["groups is a whole number of 401 digits", "no float is so large"],
    "a bad result": ["loss is nan", "metrics that cannot be kept", "return a dict of numbers"],
    "a link": ["no regular file; write a copy"],
}
DATA: dict[str, list[str]] = {
    "columns.jsonl": [
        "data.format=preference 'data.fields={prompt: question, chosen: good, rejected: bad}'"
    ],
    "other.jsonl": ["their fields: bar, baz, foo", "data.format=preference 'data.fields={prompt:"],
    "chats.jsonl": ["they are conversations", "temper run sft"],
    "prompts.jsonl": ["they are prompts", "temper run rlhf with reward_model=FOLDER"],
    "semicolons.csv": ["parted by ';': write it with commas"],
    "halves.csv": ["parted by ';': write it with commas"],
    "nested.json": ["whose field data holds the rows", """`jq '."data"' FILE.json"""],
    "commas.jsonl": ["its lines end in commas: leave them out"],
    "joined.jsonl": ["19 of the 20 rows", "its lines end in commas: leave them out"],
    "indented.jsonl": ["each object takes several lines: write one a line"],
    "dicts.jsonl": ["these are Python's dicts: write each row with json.dumps"],
    "latin-1.jsonl": ["save it in UTF-8, as with `iconv"],
    "latin-1.csv": ["save it in UTF-8, as with `iconv"],
    "tabs.csv": ["parted by tabs: name it .tsv"],
    "one.jsonl": ["no row is left for test", "change data.test_fraction"],
    "empty.jsonl": ["empty.jsonl has no rows"],
    "broken.jsonl": ["no valid row", "broken JSON: 3"],
    "notes.md": ["name it by what it holds: .jsonl"],
    "list.jsonl": ["found a list, expected an object", "it is one JSON list: name it .json"],
    "lists.jsonl": ["found a list, expected an object", "its rows are lists: write each as an"],
    "lists.json": ["found a list, expected an object", "its rows are lists: write each as an"],
    "utf-16.jsonl": ["it is UTF-16: convert it"],
    "utf-16.csv": ["it is UTF-16: convert it, as in `iconv -f utf-16 -t utf-8`"],
    "json.parquet": ["it holds JSON: name it .jsonl"],
    "utf-32.jsonl": ["it is UTF-32: convert it", "iconv -f utf-32"],
    "packed.jsonl": ["it is a gzip file: add .gz to its name"],
}
WRONG_FIELD = "its rows have the fields bad, good, question, and no questio or rejected: say which"


@pytest.fixture(scope="module")
def failures(folder: Path) -> Iterator[dict[str, str]]:
    """What is shown of each step of a run in which every step fails, by the name of its result."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        instead_of_processes(patch)
        look_again()
        wrong = FormatChoice("preference", {"prompt": "questio", "chosen": "good"})
        roots = {name: mistaken(name) for name in (*BUGS, *MESSAGES)}
        roots |= {name: load_preferences(File(name)) for name in DATA}
        roots["a wrong field"] = load_preferences(
            File("columns.jsonl"), config=LoadConfig(format=wrong)
        )
        roots["a label"] = load_unpaired(File("labels.jsonl"))
        roots["overwritten"] = overwrites(one_part(File("docs/index.md")))
        roots["missing"] = use(one_part(File("notes.md"))["test"])
        console = Console(file=io.StringIO(), width=2000)
        with pytest.raises(RunFailed) as failed:
            run(roots, "failed-store", console=console, verbosity=-1)
        assert failed.value.__cause__ is None
        shown = console.file.getvalue()  # type: ignore[attr-defined]
        told = [part.strip() for part in shown.split("✗ ")[1:]]
        yield {name_of(part): part for part in told}


def name_of(told: str) -> str:
    """The result that a failed step is behind, or the step's own name."""
    heading = told.partition(": ")[0]
    return heading.partition(" (")[2].removesuffix(")") or heading


@pytest.mark.parametrize(
    "mistake", [*MESSAGES, *DATA, "a wrong field", "load_unpaired", "use", "overwrites"]
)
def test_a_foreseen_failure_of_a_step_is_one_sentence(
    mistake: str, failures: dict[str, str]
) -> None:
    remedies = {
        **MESSAGES,
        **DATA,
        "a wrong field": [WRONG_FIELD],
        "load_unpaired": ["label is str 'perhaps', expected true or false", "data.fields.good"],
        "use": ["no part 'test'; it has: train"],
        "overwrites": ["train/rows.txt in the input from one_part was written"],
    }[mistake]
    told, *rest = failures[mistake].splitlines()
    require_message(told.split(": ", 1)[1], *remedies)
    assert [line.split(":")[0].strip() for line in rest if line] in (["whole log"], [])


@pytest.mark.parametrize("mistake", BUGS)
def test_a_bug_is_shown_by_the_lines_of_the_user_alone(
    mistake: str, failures: dict[str, str]
) -> None:
    shown = failures[mistake]
    for line in BUGS[mistake]:
        assert line in shown
    assert "Traceback" not in shown
    assert "pipeline" not in shown.partition("whole log")[0]
    assert len(shown.splitlines()) <= 10
    log = shown.split("whole log: ")[1].splitlines()[0]
    assert "Traceback (most recent call last)" in Path(log).read_text()


def test_a_disk_that_is_full_for_the_driver_is_told_with_the_remedy(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(executor: Executor, step: Step) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Executor, "execute", full)
    console = Console(file=io.StringIO(), width=2000)
    with pytest.raises(RunFailed):
        run([mistaken("x")], store, console=console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    require_message(shown.split("✗ ")[1].splitlines()[0], "no space is left", "store=FOLDER")


@pytest.mark.parametrize("closed", ["config.json", "model.safetensors", "."])
def test_a_model_that_this_user_may_not_read_is_named(closed: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        model = model_for_plans(Path(folder, "model"))
        Path(model, closed).chmod(0)
        with not_as_root():
            with pytest.raises(PermissionError) as caught:
                refuse_no_model(File(str(model)))
            said = message_of(caught.value)
        Path(model, closed).chmod(0o755)
    file = f"{model}/{closed if closed != '.' else 'config.json'}"
    assert said == f"{file}: Permission denied"


@pytest.mark.parametrize("there", [True, False])
def test_a_file_that_this_user_may_not_write_is_named(there: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        rows = Path(folder, "rows.jsonl")
        if there:
            rows.touch(0o644)
        with not_as_root():
            with pytest.raises(PermissionError) as caught:
                write_json_lines(rows, PAIRS)
            said = message_of(caught.value) or ""
    assert said == f"{rows}: Permission denied"


def test_a_folder_of_data_that_this_user_may_not_list_is_named() -> None:
    with tempfile.TemporaryDirectory() as folder:
        (closed := Path(folder, "rows")).mkdir(0)
        Path(folder).chmod(0o755)
        for path in (closed, closed / "*.jsonl", closed / "rows.jsonl"):
            with not_as_root(), pytest.raises(TemperError) as caught:
                data_at(str(path))
            require_message(str(caught.value), f"{path} cannot be read")
        (closed / "rows.jsonl").write_text("{}")
        closed.chmod(0o711)  # a file may be read by its name
        with not_as_root():
            assert data_at(str(closed / "rows.jsonl"))
        closed.chmod(0o755)


# --- in the shell ------------------------------------------------------------------------------

SHELL: list[tuple[list[str], list[str]]] = [
    (["list"], ["TEMPER_STORE"]),
    (["list", "--store", "gs://"], ["store 'gs://' names no bucket, as in gs://BUCKET"]),
    (["list", "--store", "gs:///path"], ["names no bucket"]),
    (["list", "--store", "s3a://"], ["store 's3a://' names no bucket"]),
    (["list", "--store", "s3://"], ["store 's3://' names no bucket, as in s3://BUCKET"]),
    (["--store", "x", "list"], ["belongs after a command, as in: temper list --store PATH"]),
    (["recipes", "dpo"], ["temper run dpo --help explains its settings"]),
    (["list", "--store", "gs:/bucket/path"], ["an address has two slashes, as in gs://BUCKET"]),
    (["run", "dpo", "--data", "a.jsonl", "--data", "b.jsonl"], ["--data stands there twice"]),
    (["run", "dpo", "--dat", "a.jsonl"], ["unknown option --dat; did you mean --data?"]),
    (["run", "dpo", "--data="], ["--data needs a value"]),
    (["plan", "nope.py"], ["no script nope.py"]),
    (["plan", "dpo"], ["a recipe: temper run dpo --plan"]),
    (["sft"], ["there is no command sft: temper run sft"]),
    (["lst"], ["there is no command lst; did you mean list?"]),
    (["frobnicate"], ["temper -h lists them"]),
    (["show", "train_dpo"], ["TEMPER_STORE"]),
    (["logs", "train_dpo"], ["TEMPER_STORE"]),
]


@pytest.mark.parametrize(("typed", "remedies"), SHELL, ids=lambda case: " ".join(case))
def test_a_mistake_in_the_shell(
    typed: list[str], remedies: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    failed = CliRunner().invoke(app, typed)
    assert failed.exit_code != 0
    assert failed.exception is not None
    told = message_of(failed.exception)
    assert told is not None, failed.exception
    require_message(told, *remedies)


def in_a_script(folder: Path, source: str) -> subprocess.CompletedProcess[str]:
    (folder / "plain.py").write_text(source)
    command = [sys.executable, "plain.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


COMPOSED = """
from pipeline import File, run
from steps.load_preferences import load_preferences

run([load_preferences(File("nope.jsonl"))])
"""


def test_a_plain_script_ends_with_one_sentence_and_its_own_line(tmp_path: Path) -> None:
    ran = in_a_script(tmp_path, COMPOSED)
    assert ran.returncode == 1
    assert ran.stderr == (
        f"error: input {tmp_path}/nope.jsonl does not exist; check the path (now in {tmp_path}) "
        "(plain.py, line 5)\n"
    )


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (COMPOSED, "nope.jsonl does not exist"),
        ("import pipeline\n", "plain.py has ended without a plan"),
    ],
)
def test_a_planned_script_does_too(
    tmp_path: Path, source: str, told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (script := tmp_path / "plain.py").write_text(source)
    planned = temper("plan", str(script))
    assert planned.status == 1
    require_message(planned.err + capfd.readouterr().err, told)


UNGUARDED = """
from pipeline import Output, run, step

@step
def mine(out: Output) -> dict:
    return {}

run([mine()])
"""


OF_MAIN = UNGUARDED.replace(
    "run([mine()])",
    """
from dataclasses import dataclass
from pipeline.experiment import ExperimentConfig, main

@dataclass
class Config(ExperimentConfig): ...

def mine_of(cfg: Config): return {"mine": mine()}

main(mine_of)
""",
)


@pytest.mark.slow
@pytest.mark.parametrize(("source", "call"), [(UNGUARDED, "run"), (OF_MAIN, "main")])
def test_a_script_without_a_guard_is_told_to_put_one(
    source: str, call: str, tmp_path: Path
) -> None:
    ran = in_a_script(tmp_path, source)
    assert ran.returncode == (3 if call == "main" else 1)
    assert f"{call}() was called in the worker of a step" in ran.stdout
    assert 'put it under `if __name__ == "__main__":`' in ran.stdout
    assert "Traceback" not in ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("call", "begin"),
    [("run", lambda: run([mistaken("gpus")])), ("main", lambda: main(as_any(dict))),
     ("tune", lambda: tune(as_any(dict), as_any(None), {}, "a.b", trials=1))],
)  # fmt: skip
def test_a_process_that_imports_the_script_begins_no_run(
    call: str, begin: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the processes of multiprocessing do; each would run the whole script again."""
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(TemperError, match=rf"^{call}\(\) was called again by a process"):
        begin()


@pytest.mark.parametrize("source", ["-c", "-"])
def test_a_step_that_is_typed_in_is_refused_with_what_to_do(source: str, tmp_path: Path) -> None:
    text = UNGUARDED.replace("run(", "print(")
    command = [sys.executable, source, *([text] if source == "-c" else [])]
    typed = subprocess.run(command, input=text, cwd=tmp_path, capture_output=True, text=True)
    assert typed.returncode == 1
    require_message(typed.stderr, "my_steps.py", "from my_steps import mine")


def test_a_file_that_takes_the_name_of_the_core_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a command that starts the script, and before a worker would import it."""
    for name in ("pipeline.py", "mine.py"):
        (tmp_path / name).touch()
    told = CliRunner().invoke(app, ["plan", str(tmp_path / "mine.py")]).exception
    require_message(str(told), "pipeline.py would be imported for Temper's pipeline; rename it")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TemperError, match=r"pipeline\.py would be imported for Temper"):
        import_path()


def test_a_notebook_shows_the_message_in_place_of_a_traceback() -> None:
    """IPython asks an exception for its lines by this name."""
    error: Any = TemperError("no rows;\nadd some")
    assert error._render_traceback_() == ["error: no rows; add some"]


def test_a_folder_of_the_hubs_cache_names_its_snapshots(tmp_path: Path) -> None:
    for name in ("blobs", "snapshots"):
        (tmp_path / "models--o--n" / name).mkdir(parents=True)
    model_for_plans(tmp_path / "models--o--n" / "snapshots" / "abc")
    with pytest.raises(TemperError, match=r"did you mean .*models--o--n/snapshots/abc"):
        refuse_no_model(File(str(tmp_path / "models--o--n")))
