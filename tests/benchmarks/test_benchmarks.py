"""Benchmarks of suites: asked, answered and scored in steps of their own, as the suites do."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from step_output import Folder

from pipeline import File, Step, Store, TemperError, adopt, look_again, run
from pipeline.plan.planning import make_plan
from steps.ask_benchmark import ask_benchmark
from steps.benchmark import benchmark
from steps.benchmarks.config import AnsweringConfig, BenchmarkConfig, BenchmarkName, Suite
from steps.benchmarks.questions import with_ids
from steps.evaluation.intervals import proportion
from steps.fetch_benchmark import fetch_benchmark
from steps.kinds import Model
from steps.views import benchmark as views_of

LM_EVAL = {
    "capital.yaml": """
task: capital
dataset_path: json
dataset_kwargs: {data_files: {test: rows.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_choice: choices
doc_to_target: answer
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
metadata: {version: 1}
""",
    "words.yaml": """
task: words
dataset_path: json
dataset_kwargs: {data_files: {train: rows.jsonl, test: rows.jsonl}}
fewshot_split: train
test_split: test
num_fewshot: 1
output_type: generate_until
doc_to_text: !function rules.ask
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["STOP"], max_gen_toks: 20}
filter_list:
  - {name: all, filter: [{function: take_first}]}
  - {name: first, filter: [{function: regex, regex_pattern: "(.)"}, {function: take_first}]}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
metadata: {version: 1}
""",
    "pages.yaml": """
task: pages
dataset_path: json
dataset_kwargs: {data_files: {test: rows.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}{{question}}{{question}}"
metric_list: [{metric: bits_per_byte}]
metadata: {version: 1}
""",
    "rules.py": "def ask(row):\n    return 'Q: ' + row['question']\n",
}
INSPECT = """
from inspect_ai import Task, task
from inspect_ai.dataset import json_dataset
from inspect_ai.model import GenerateConfig
from inspect_ai.scorer import choice, includes
from inspect_ai.solver import generate, multiple_choice, self_critique

SHORT = GenerateConfig(max_tokens=16)


@task
def letters():
    rows = json_dataset("asked.jsonl")
    return Task(dataset=rows, solver=generate(), scorer=includes(), config=SHORT)


@task
def choosing():
    rows = json_dataset("asked.jsonl")
    return Task(dataset=rows, solver=multiple_choice(), scorer=choice(), config=SHORT)
"""
AGAIN = INSPECT.replace("solver=generate()", "solver=[generate(), self_critique()]")
ROWS = [
    {"question": "Capital of France?", "choices": ["Paris", "Rome"], "answer": 0},
    {"question": "Capital of Italy?", "choices": ["Paris", "Rome"], "answer": 1},
    {"question": "<b>Two</b> and two?", "choices": ["four", "five"], "answer": 0},
]
ASKED = [
    {"input": "Write an a.", "choices": ["a", "bc"], "target": "A"},
    {"input": "Write the letter e.", "choices": ["x", "e"], "target": "B"},
]


def write_rows(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pytest.importorskip("lm_eval", reason="the evaluation harness is an extra: temper-ml[lm-eval]")
    (folder := tmp_path / "tasks").mkdir()
    for name, text in LM_EVAL.items():
        (folder / name).write_text(text)
    write_rows(folder / "rows.jsonl", ROWS)
    return folder


@pytest.fixture
def inspect_folder(tmp_path: Path) -> Path:
    pytest.importorskip("inspect_ai", reason="inspect-ai is an extra: temper-ml[inspect]")
    (folder := tmp_path / "inspected").mkdir()
    (folder / "letters.py").write_text(INSPECT)
    write_rows(folder / "asked.jsonl", ASKED)
    return folder


def short(model: Path, folder: Path, length: int) -> Path:
    """The model as if it were made for sequences of this length."""
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = length
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def of_lm_eval(folder: Path, model: Path, chat: bool) -> Any:
    """What lm-eval finds with its own model, on the same tasks."""
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    from steps.benchmarks import lm_eval_suite

    evaluate: Any = simple_evaluate
    (copy := folder.parent / "own").mkdir()
    shutil.copytree(folder, copy / "tasks")
    with lm_eval_suite._alone_in(copy / "tasks"):
        kind: Any = HFLM
        lm = kind(str(model), dtype="float32", device="cpu", batch_size=2)
        manager = lm_eval_suite.TaskManager(include_path=".", include_defaults=False)
        return evaluate(
            lm,
            tasks=["capital", "pages", "words"],
            task_manager=manager,
            apply_chat_template=chat,
            fewshot_as_multiturn=chat,
            bootstrap_iters=0,
        )


@pytest.mark.usefixtures("workers_here")
@pytest.mark.parametrize(("length", "chat"), [(2048, False), (2048, True), (40, False)])
def test_answers_and_scores_of_each_item_are_those_of_lm_eval_itself(
    folder: Path, tiny_model: Path, store: Store, console: Console, length: int, chat: bool
) -> None:
    # 40: prompts lose their beginnings, and pages take several windows
    model = short(tiny_model, folder.parent / "model", length)
    scored = benchmark(adopt(str(model), Model), f"{folder}@lm-eval", BenchmarkConfig(chat=chat))
    made = run({"scores": scored}, store, console=console)["scores"]
    wanted = of_lm_eval(folder, model, chat)
    items = {item["row"]: item for item in made.records("answers.jsonl")}
    seen = 0
    for task, samples in wanted["samples"].items():
        for sample in samples:
            suffix = "" if sample["filter"] == "none" else f"@{sample['filter']}"
            item = items[f"{task}:{sample['doc_id']}{suffix}"]
            if task == "words":
                assert item["answer"] == sample["filtered_resps"][0]
            if task != "pages":
                seen += 1
                assert {n: item[n] for n in sample["metrics"]} == {
                    n: float(sample[n]) for n in sample["metrics"]
                }
    assert seen == 9
    pages = wanted["results"]["pages"]["bits_per_byte,none"]
    assert made.metrics["pages/bits_per_byte"] == pytest.approx(pages, rel=1e-6)
    accuracy = made.metrics["capital/acc"]
    share = proportion(round(3 * wanted["results"]["capital"]["acc,none"]), 3)
    assert {end: accuracy[end] for end in share} == share
    titles = [getattr(view, "title", None) for view in views_of(made)]
    assert titles == ["capital", "pages", "words"]


@pytest.mark.usefixtures("workers_here")
def test_another_metric_or_place_asks_the_model_nothing(
    folder: Path,
    tiny_model: Path,
    store: Store,
    console: Console,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = adopt(str(tiny_model), Model)

    def steps() -> dict[str, Step]:
        look_again()
        return {"scores": benchmark(model, f"{folder}@lm-eval")}

    run(steps(), store, console=console)
    folder = folder.rename(folder.with_name("moved"))
    assert make_plan(steps(), store).is_complete
    task = folder / "words.yaml"
    task.write_text(task.read_text().replace("exact_match,", "exact_match, ignore_case: true,"))
    assert not make_plan(steps(), store).is_complete
    monkeypatch.setattr("steps.benchmarks.answering.answer_questions", None)
    assert "words/exact_match@all" in run(steps(), store, console=console)["scores"].metrics
    task.write_text(task.read_text().replace("max_gen_toks: 20", "max_gen_toks: 21"))
    with pytest.raises(TemperError, match="answer_benchmark"):
        run(steps(), store, console=console)


@pytest.mark.usefixtures("workers_here")
def test_tasks_of_inspect_are_answered_as_by_its_own_model(
    inspect_folder: Path,
    tiny_model: Path,
    store: Store,
    console: Console,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scored = benchmark(adopt(str(tiny_model), Model), f"{inspect_folder}@inspect-ai")
    made = run({"scores": scored}, store, console=console)["scores"]

    import inspect_ai  # pyright: ignore[reportMissingImports]
    from inspect_ai.model import get_model  # pyright: ignore[reportMissingImports]

    own: dict[str, Any] = {"model_path": str(tiny_model), "device": "cpu", "do_sample": False}
    monkeypatch.chdir(inspect_folder)
    model: Any = get_model("hf/local", **own)
    logs: Any = inspect_ai.eval(
        "letters.py", model=model, log_dir=str(tmp_path / "logs"), display="none"
    )
    answers = {item["row"]: item["answer"] for item in made.records("answers.jsonl")}
    wanted = {f"{log.eval.task}:{s.id}": s.output.completion for log in logs for s in log.samples}
    assert answers == wanted
    for log in logs:
        (score,) = log.results.scores
        found = made.metrics[f"{log.eval.task}/{score.name}/accuracy"]
        assert found["value"] == score.metrics["accuracy"].value
        assert found["low"] < found["high"]


@pytest.mark.slow  # lm-eval reads the files of all of its tasks
@pytest.mark.usefixtures("workers_here")
def test_a_named_task_needs_a_network_only_to_fetch_its_rows(
    folder: Path,
    tiny_model: Path,
    store: Store,
    console: Console,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import datasets
    import lm_eval

    real: Any = datasets.load_dataset
    commit, rows = "a" * 40, folder / "math.jsonl"
    write_rows(rows, [{"question": f"{n} + 1?", "answer": f"#### {n + 1}"} for n in range(8)])

    def hub(path: str, name: str | None = None, revision: str = "", **how: Any) -> Any:
        assert (path, name, revision, how) == ("openai/gsm8k", "main", commit, {})
        return real("json", data_files={"train": str(rows), "test": str(rows)})

    monkeypatch.setattr(datasets, "load_dataset", hub)
    name = f"gsm8k@lm-eval:{lm_eval.__version__}#{commit}"
    asked = BenchmarkConfig(limit=2), AnsweringConfig(max_new_tokens=8)
    scored = benchmark(adopt(str(tiny_model), Model), name, *asked)
    fetched = scored.arguments["tasks"]
    assert run({"rows": fetched}, store, console=console)["rows"].metrics["rows"] == 16
    monkeypatch.setattr(datasets, "load_dataset", real)
    made = run({"scores": scored}, store, console=console)["scores"]
    first = next(iter(made.records("answers.jsonl")))
    assert first["prompt"].count("Question: ") == 6
    assert "gsm8k/exact_match@strict-match" in made.metrics


@pytest.mark.parametrize(
    ("file", "before", "after", "tasks", "message"),
    [
        ("words.yaml", "dataset_path: json", "dataset_path: owner/name", [],
         "words cannot be made from the folder alone .*rows must lie in it"),
        ("words.yaml", "rows.jsonl", "FOLDER/rows.jsonl", [], "which is not in the folder"),
        ("words.yaml", "rows.jsonl", "../rows.jsonl", [], "cannot be made from the folder alone"),
        ("words.yaml", "max_gen_toks: 20", "num_beams: 2", [], "samples with num_beams"),
        ("words.yaml", "", "", ["mmlu"], "no mmlu in the folder; it has: capital, pages, words"),
        ("letters.py", "", "", ["mmlu"], "no mmlu in the folder; it has: choosing, letters"),
        ("letters.py", "asked.jsonl", "nowhere.jsonl", [], "nowhere.jsonl"),
        ("letters.py", "max_tokens=16", "num_choices=2", [], "samples with num_choices"),
    ],
)  # fmt: skip
def test_tasks_that_cannot_be_asked_are_refused(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    file: str,
    before: str,
    after: str,
    tasks: list[str],
    message: str,
) -> None:
    suite = "lm-eval" if file.endswith("yaml") else "inspect-ai"
    at: Path = request.getfixturevalue("folder" if suite == "lm-eval" else "inspect_folder")
    task = at / file
    task.write_text(task.read_text().replace(before, after.replace("FOLDER", str(at)), 1))
    named, config = BenchmarkName.parse(f"{at}@{suite}"), BenchmarkConfig(tasks)
    with pytest.raises(TemperError, match=message):
        ask_benchmark.function(Folder(tmp_path / "out"), File(str(at)), named.suite, config)


def test_a_task_that_asks_again_by_an_answer_is_refused_when_it_is_scored(
    inspect_folder: Path, tmp_path: Path
) -> None:
    from steps.benchmarks import inspect_suite

    (inspect_folder / "letters.py").write_text(AGAIN)
    config = BenchmarkConfig(["letters"], limit=1)
    asked = with_ids(inspect_suite.ask(inspect_folder, config))
    answers = {q["id"]: {"id": q["id"], "text": "a", "finish": "stop"} for q in asked}
    with pytest.raises(ValueError, match=r"letters: there is no answer to .*depend on earlier"):
        inspect_suite.score(inspect_folder, config, answers)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gsm8k", "'gsm8k' is not TASK@lm-eval:VERSION#COMMIT"),
        ("gsm8k@helm:1", "is not TASK@lm-eval"),
        ("gsm8k@lm-eval:0.4.13#main", "is not TASK@lm-eval.*all 40 digits"),
        (
            "gsm8k@lm-eval:0.4.13",
            "there is no folder 'gsm8k', and a task of lm-eval itself",
        ),
        ("gsm8k@inspect-evals:0.3", "is not TASK@lm-eval:VERSION#COMMIT"),
        (f"gsm8k@inspect-ai#{'a' * 40}", "is not TASK@lm-eval:VERSION#COMMIT"),
    ],
)
def test_names_that_pin_nothing_are_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(TemperError, match=message):
        benchmark(adopt(str(tmp_path), Model), name)


def test_another_version_of_the_suite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TemperError, match=r"of lm-eval 0.1, and .* is installed; pip install"):
        fetch_benchmark.function(Folder(tmp_path / "o"), "a", Suite("lm-eval", "0.1"), "a" * 40)
