"""The steps of online training, composed and run: files in, a policy and its rollouts out."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from step_output import Folder
from tiny_models import folder_bytes, model_folder, word_tokenizer
from worlds import ShortWords

from pipeline import File, TemperError
from pipeline.show.views import Curves, Texts
from steps.checking.config import JudgeConfig
from steps.core_adapters.kept_rows import keep_rows
from steps.data.formats.choice import FormatChoice
from steps.data.load.config import LoadConfig
from steps.data.rows.parquet import read_rows, write_rows
from steps.data.rows.rows import ConversationRow, PromptRow
from steps.data.rows.tables import CONVERSATIONS, PROMPTS, to_record
from steps.judge import judge
from steps.load_prompts import load_prompts
from steps.models.folders import load_model
from steps.online.config import RlConfig
from steps.online.methods.choices import METHODS
from steps.online.methods.distill import Distill
from steps.online.methods.policy_gradient import PolicyGradient
from steps.online.rollouts import OF_DATA, read_rollouts
from steps.tokenize_conversations import tokenize_conversations
from steps.train_on_rollouts import train_on_rollouts
from steps.train_online import train_online
from steps.training.config import OptimizerConfig, Schedule
from steps.views import ONLINE_CURVES
from steps.views import online as online_view

CONFIG = RlConfig(
    method=PolicyGradient(),
    prompts=4,
    completions=6,
    max_new_tokens=6,
    max_prompt_length=5,
    slots=24,
    tokens_per_forward=64,
    optimizer=OptimizerConfig(learning_rate=1e-2, schedule=Schedule.constant),
)


JUDGING = JudgeConfig(most_without=1.0)


def artifact(path: Path) -> Any:
    return SimpleNamespace(path=path, step=path.name, digest="0" * 32)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Prompts, and a policy with a tokenizer."""
    folder = tmp_path_factory.mktemp("online")
    rows = [
        PromptRow(f"q{n}", ({"role": "user", "content": f"w{n} w{n + 1}"},), "w3") for n in range(7)
    ]
    rows.append(PromptRow("long", ({"role": "user", "content": "w1 w2 w3 w4"},), "w3"))
    write_rows(folder / "prompts" / "prompts-00000.parquet", PROMPTS, map(to_record, rows))
    word_tokenizer().save_pretrained(model_folder(folder / "policy"))
    return artifact(folder / "prompts"), artifact(folder / "policy")


def online(folders: tuple[Any, Any], work: Path, iterations: int, start: Any = None) -> Any:
    prompts, policy = folders
    out = Folder(work / "made", work / "scratch")
    metrics = train_online.function(
        out, prompts, policy, iterations, ShortWords(), CONFIG, JUDGING, start
    )
    return out.path, metrics


@pytest.fixture(scope="module")
def run(folders: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    return online(folders, tmp_path_factory.mktemp("run"), 3)


def test_a_run_is_a_model_a_state_judged_rollouts_and_a_log(run: tuple[Path, Any]) -> None:
    made, metrics = run
    assert load_model(made / "model").config.model_type == "llama"
    assert json.loads((made / "state" / "state.json").read_text())["iterations"] == 3
    rollouts = list(read_rollouts(made / "rollouts"))
    assert len(rollouts) == 3 * 4 * 6
    assert all(rollout.verdict is not None for rollout in rollouts)
    assert all(rollout.policy_logps for rollout in rollouts if rollout.is_rewarded)
    assert (made / "rollouts" / "engine.json").is_file()
    assert len((made / "metrics.jsonl").read_text().splitlines()) == 3
    first_reward = metrics["first"]["reward"]
    summary = (made / "summary.md").read_text()
    assert (
        f"| iteration 1 | iteration 3 |\n|---|---:|---:|\n| reward | {first_reward:.6f} |"
        in summary
    )
    assert metrics["iterations"] == 3
    assert metrics["first"]["ratio/at_start"] == 0
    assert metrics["dropped_by_reason"] == {"prompt too long": {"count": 1, "rows": ["long"]}}
    assert "long" not in {rollout.row for rollout in rollouts}
    assert json.loads(json.dumps(metrics)) == metrics


def test_a_report_has_the_curves_of_a_run_and_completions_from_its_iterations(
    run: tuple[Path, Any],
) -> None:
    folder, metrics = run
    made: Any = SimpleNamespace(
        names=lambda pattern: sorted(str(f.relative_to(folder)) for f in folder.glob(pattern)),
        read=lambda name: (folder / name).read_bytes(),
        text=lambda name: (folder / name).read_text() if (folder / name).exists() else None,
        records=lambda name: [json.loads(x) for x in (folder / name).read_text().splitlines()],
        manifest=SimpleNamespace(metrics=metrics, step="train_online"),
    )
    shown = list(online_view(made))
    drawn = {name for view in shown if isinstance(view, Curves) for name in view.lines}
    assert set(ONLINE_CURVES.values()) - drawn == {
        ONLINE_CURVES["kl/k3"],  # of a method with KL
        ONLINE_CURVES["teacher/reverse_kl"],  # of one with a teacher
        ONLINE_CURVES["completions/mean_turns"],  # of a run with an environment
    }
    (completions,) = (v for v in shown if getattr(v, "title", "") == "Completions over iterations")
    assert isinstance(completions, Texts)
    assert len(completions.rows) >= 3


def test_segments_and_a_replay_end_with_the_bits_of_one_run(
    folders: tuple[Any, Any], run: tuple[Path, Any], tmp_path: Path
) -> None:
    made, _ = run
    one, _ = online(folders, tmp_path / "one", 2)
    two, _ = online(folders, tmp_path / "two", 1, artifact(one / "state"))
    again = Folder(tmp_path / "again")
    train_on_rollouts.function(again, artifact(made / "rollouts"), folders[1], CONFIG)
    for part in ("model", "state"):
        assert folder_bytes(two / part) == folder_bytes(made / part)
        assert folder_bytes(again.path / part) == folder_bytes(made / part)


def demonstrations(policy: Any, folder: Path) -> Any:
    rows = [
        ConversationRow(
            f"d{n}",
            (
                {"role": "user", "content": f"w{n}"},
                {"role": "assistant", "content": f"w{n + 1} w{n + 2}"},
            ),
        )
        for n in range(9)
    ]
    file = folder / "shown/conversations-00000.parquet"
    write_rows(file, CONVERSATIONS, map(to_record, rows))
    out: Any = Folder(folder / "tokens")
    tokenize_conversations.function(out, artifact(file.parent), tokenizer=policy)
    return artifact(out.path)


@pytest.mark.parametrize("on_policy", [1.0, 0.5])
def test_a_run_with_a_teacher_and_without_a_checker_is_its_segments_and_its_rollouts(
    folders: tuple[Any, Any], tmp_path: Path, on_policy: float
) -> None:
    prompts, policy = folders
    word_tokenizer().save_pretrained(teacher := model_folder(tmp_path / "teacher", seed=1))
    config = replace(CONFIG, method=Distill(beta=0.5, top_k=8, on_policy=on_policy))
    shown = None if on_policy == 1 else demonstrations(policy, tmp_path)

    def train(name: str, iterations: int, start: Any = None, config: RlConfig = config) -> Path:
        out: Any = Folder(tmp_path / name / "made", tmp_path / name / "scratch")
        train_online.function(
            out,
            prompts,
            policy,
            iterations,
            None,
            config,
            start=start,
            teacher=artifact(teacher),
            demonstrations=shown,
        )
        return out.path

    whole, one = train("whole", 3), train("one", 1)
    two = train("two", 2, artifact(one / "state"))
    again, again_two = Folder(tmp_path / "again"), Folder(tmp_path / "again two")
    train_on_rollouts.function(again, artifact(whole / "rollouts"), policy, config)
    replayed = (artifact(two / "rollouts"), policy, config, artifact(one / "state"))
    train_on_rollouts.function(again_two, *replayed)
    for folder in (two, again.path, again_two.path):
        for part in ("model", "state"):
            assert folder_bytes(folder / part) == folder_bytes(whole / part)
    of_data = [r.row for r in read_rollouts(whole / "rollouts") if r.weights == OF_DATA]
    assert len(of_data) == (0 if shown is None else 4)  # of one iteration, one for each prompt
    if shown is None:
        told = "learns from rewards here, and nothing gives any; give"
        with pytest.raises(TemperError, match=told):
            train("nothing", 1, config=replace(CONFIG, method=Distill(reward_weight=1.0)))
    else:
        judged: Any = Folder(tmp_path / "judged")
        judge.function(judged, artifact(whole / "rollouts"), ShortWords(), JUDGING)
        verdicts = {(r.weights == OF_DATA, r.verdict is None) for r in read_rollouts(judged.path)}
        assert verdicts == {(True, True), (False, False)}
        with pytest.raises(ValueError, match="of the demonstrations has"):
            train("short", 1, config=replace(config, max_new_tokens=1))
        with pytest.raises(TemperError, match="belong to Distill with on_policy below 1 and one"):
            train("other", 1, config=replace(CONFIG, method=Distill()))


def test_a_column_of_the_rows_names_their_teacher(folders: tuple[Any, Any], tmp_path: Path) -> None:
    lines = [{"prompt": f"w{n} w{n + 1}", "subject": "ab"[n % 2]} for n in range(6)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    named = LoadConfig(format=FormatChoice("prompt", {"teacher": "subject"}))
    loaded: Any
    kept: Any
    out: Any
    loaded, kept, out = (Folder(tmp_path / name) for name in ("loaded", "kept", "made"))
    load_prompts.function(loaded, File(str(tmp_path / "rows.jsonl")), config=named)
    rows: Any = artifact(loaded.path)
    keep_rows(kept, rows, PromptRow, ("train",), lambda row: None)
    assert {row["teacher"] for row in read_rows(kept.path / "train")} == {"a", "b"}
    teachers = {
        n: artifact(model_folder(tmp_path / n, seed=seed)) for seed, n in enumerate("ab", 1)
    }
    for each in teachers.values():
        word_tokenizer().save_pretrained(each.path)
    config = replace(CONFIG, method=Distill())
    asked, policy = artifact(kept.path / "train"), folders[1]
    train_online.function(out, asked, policy, 1, None, config, teacher=teachers)
    assert len(list((out.path / "rollouts").glob("teacher-000000*.parquet"))) == 2
    others = {"b": teachers["b"], "c": teachers["b"]}
    with pytest.raises(ValueError, match="names the teacher 'a', and there are b, c"):
        train_online.function(out, asked, policy, 1, None, config, teacher=others)


@pytest.mark.parametrize("preset", sorted(Path("conf/rl").glob("*.yaml")), ids=lambda p: p.stem)
def test_presets_are_settings_that_their_methods_take(preset: Path) -> None:
    content = yaml.safe_load(preset.read_text())
    (override,) = content["defaults"]
    settings = content.get("method", {})
    method: Callable[..., Any] = METHODS[override["override method"]]
    RlConfig(method=method(**settings))
