"""EleutherAI's harness as a step: on tasks in a folder, offline, with the folder in the key."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from step_output import Folder

from pipeline import File, Step, Store, TemperError, adopt, look_again, run
from pipeline.plan.planning import make_plan
from steps.data.rows.jsonl import read_json_lines
from steps.evaluation.config import HarnessConfig
from steps.evaluation.intervals import proportion
from steps.kinds import Model
from steps.lm_eval import lm_eval
from steps.views import benchmark

CHOICE = """
task: capital
dataset_path: json
dataset_kwargs: {data_files: {test: rows.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_choice: choices
doc_to_target: answer
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
metadata: {version: 1}
"""
WRITING = """
task: words
dataset_path: json
dataset_kwargs: {data_files: {test: rows.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: !function rules.ask
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 6}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
metadata: {version: 1}
"""
ROWS = [
    {"question": "Capital of France?", "choices": ["Paris", "Rome"], "answer": 0},
    {"question": "Capital of Italy?", "choices": ["Paris", "Rome"], "answer": 1},
    {"question": "<b>Two</b> and two?", "choices": ["four", "five"], "answer": 0},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pytest.importorskip("lm_eval", reason="the evaluation harness is an extra: temper-ml[lm-eval]")
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "capital.yaml").write_text(CHOICE)
    (folder / "words.yaml").write_text(WRITING)
    (folder / "rules.py").write_text("def ask(row):\n    return 'Q: ' + row['question']\n")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return folder


def choices_by_hand(model: Path) -> list[str]:
    """The likelier continuation of each question, without the harness."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    net, tokenizer = (kind.from_pretrained(model) for kind in (AutoModelForCausalLM, AutoTokenizer))
    chosen = []
    for row in ROWS:
        prompt = tokenizer(f"Question: {row['question']}\nAnswer:")["input_ids"]
        scores = []
        for choice in row["choices"]:
            ids = tokenizer(f" {choice}")["input_ids"]
            with torch.no_grad():
                logits = net(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
            scores.append(logits.log_softmax(-1)[range(len(ids)), ids].sum().item())
        chosen.append(f" {row['choices'][scores.index(max(scores))]}")
    return chosen


@pytest.mark.usefixtures("workers_here")
def test_a_folder_of_tasks_is_evaluated_and_cached_by_its_content(
    folder: Path,
    tiny_model: Path,
    store: Store,
    console: Console,
) -> None:
    model = adopt(str(tiny_model), Model)

    def asked() -> dict[str, Step]:
        look_again()
        return {"tasks": lm_eval(File(str(folder)), model)}

    first = run(asked(), store, console=console)["tasks"]
    answers = first.records("answers.jsonl")
    chosen = [a["answer"] for a in answers if a["row"].startswith("capital:")]
    assert chosen == choices_by_hand(tiny_model)
    right = sum(
        row["choices"][row["answer"]] == a.strip() for row, a in zip(ROWS, chosen, strict=True)
    )
    accuracy = first.metrics["capital/acc"]
    assert accuracy["value"] == pytest.approx(right / 3)
    assert 0 <= accuracy["low"] < accuracy["value"] < accuracy["high"] <= 1
    assert accuracy["stderr"] > 0
    assert first.metrics["words/exact_match"]["value"] == 0
    assert "Q: <b>Two</b> and two?" in {a["prompt"] for a in answers}
    shown = list(benchmark(first))
    assert [getattr(view, "title", None) for view in shown] == ["capital", "words"]

    folder = folder.rename(folder.with_name("moved"))
    assert make_plan(asked(), store).is_complete
    rules = folder / "rules.py"
    rules.write_text(rules.read_text().replace("Q: ", "Question: "))
    assert not make_plan(asked(), store).is_complete


def test_asked_again_it_answers_the_same_bytes(
    folder: Path,
    tiny_model: Path,
    tmp_path: Path,
) -> None:
    made = []
    for name in ("one", "other"):
        out = Folder(tmp_path / name)
        config = HarnessConfig(["words"], limit=2, chat=True)
        metrics = lm_eval.function(out, File(str(folder)), Model(tiny_model, "", ""), config)
        made.append((metrics, {p.name: p.read_bytes() for p in sorted(out.path.iterdir())}))
        assert [done for done, _ in out.told] == [2]
    assert made[0] == made[1]
    assert b"<|user|>Q: Capital of France?" in made[0][1]["answers.jsonl"]


def test_the_interval_of_a_group_s_share_stays_between_0_and_1_and_is_there_for_one_row(
    folder: Path, tiny_model: Path, tmp_path: Path
) -> None:
    later = CHOICE.replace("capital", "later").replace("Answer:", "So:")
    (folder / "later.yaml").write_text(later)
    aggregated = "aggregate_metric_list: [{metric: acc, weight_by_size: true}]"
    evaluated: Any = lm_eval.function
    (folder / "both.yaml").write_text(f"group: both\ntask: [capital, later, words]\n{aggregated}\n")
    for limit, rows in ((None, 6), (1, 2)):
        out = Folder(tmp_path / f"{limit}")
        config = HarnessConfig(["both"], limit=limit)
        metrics = evaluated(out, File(str(folder)), Model(tiny_model, "", ""), config)
        answers = read_json_lines(out.path / "answers.jsonl")
        right = sum(answer.get("acc", 0) for answer in answers)  # words has no accuracy
        share = proportion(int(right), rows)
        assert {end: metrics["both/acc"][end] for end in share} == pytest.approx(share)
        assert metrics["later/acc"]["low"] < metrics["later/acc"]["high"]


@pytest.mark.parametrize(
    ("before", "after", "tasks", "message"),
    [
        ("dataset_path: json", "dataset_path: owner/name", [],
         "words cannot be made from the folder alone .*rows must lie in it"),
        ("rows.jsonl", "FOLDER/rows.jsonl", [], "which is not in the folder"),
        ("rows.jsonl", "../rows.jsonl", [], "cannot be made from the folder alone"),
        ("", "", ["mmlu"], "no mmlu in the folder; it has: capital, words"),
    ],
)  # fmt: skip
def test_what_the_folder_does_not_hold_is_refused(
    folder: Path,
    tiny_model: Path,
    tmp_path: Path,
    before: str,
    after: str,
    tasks: list[str],
    message: str,
) -> None:
    file = folder / "words.yaml"
    file.write_text(file.read_text().replace(before, after.replace("FOLDER", str(folder)), 1))
    with pytest.raises(TemperError, match=message):
        lm_eval.function(
            Folder(tmp_path / "out"),
            File(str(folder)),
            Model(tiny_model, "", ""),
            HarnessConfig(tasks),
        )
