"""The experiments as a user runs them: scripts, on a store of their own.

The preference experiment runs here on a tiny random model with a byte-level tokenizer, so that all
its steps are real and take seconds; ``.ci/run`` exercises the demo's own model. Driver and workers
are this process, which imports torch once. They are processes where one is killed, where an engine
runs them, where what a second run does is counted, in ``.ci/run`` and in the tests of a project.
"""

import contextlib
import json
import math
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pytest
from browser import cells_of, chromium, grave_faults, opened
from command_line import script
from experiment_desk import Desk
from typer.testing import CliRunner
from waiting import wait_until

from benchmarks import ray_cluster, slurm_cluster
from pipeline import Store
from pipeline.cli import app
from pipeline.dag.files import FileEntry
from pipeline.show.artifact_handle import Made
from pipeline.store.catalog import Catalog
from pipeline.store.manifest import Manifest
from pipeline.store.runs import Run, read_runs
from pipeline.wire.spec import StepSpec
from pipeline.worker.attempt import run_attempt
from pipeline.worker.stopping import Stopping

SMALL = (
    "data.max_train=8", "data.max_test=4", "sft.max_steps=4", "dpo.max_steps=4", "dpo.batch_size=4",
    "evaluate.sample_prompts=3", "evaluate.sampling.max_new_tokens=8",
    "dpo.optimizer.learning_rate=1e-3",
)  # fmt: skip


@pytest.fixture(scope="module")
def finished(
    tiny_model: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Desk]:
    """The preference experiment, run to its end once for all tests that look at the result."""
    folder = tmp_path_factory.mktemp("desk")
    rows = (repository / "experiments/house_style/train.jsonl").read_text().splitlines()
    (folder / "pairs.jsonl").write_text("\n".join(rows[:16]) + "\n")
    settings = (
        f"model.path={tiny_model}", "model.package=null", "data=mine",
        f"data.path={folder}/pairs.jsonl", "data.test_fraction=0.4", *SMALL,
    )  # fmt: skip
    desk = Desk(repository, "dpo_ultrafeedback", folder, settings)
    desk.run_here()
    yield desk
    shutil.rmtree(folder)


def test_results_record_the_libraries_that_their_steps_imported(finished: Desk) -> None:
    packages = {m.step: m.provenance["packages"] for m in everything(finished.store)}
    assert packages["train_dpo"]["torch"] == version("torch")


def test_a_second_run_starts_no_step_and_does_nothing_that_it_need_not(finished: Desk) -> None:
    before = sorted(finished.folder.rglob("attempts/*/*/*"))
    code = (
        "import collections, runpy, sys\n"
        "sys.argv, events = sys.argv[1:], collections.Counter()\n"
        "sys.addaudithook(lambda event, arguments: events.update([event]))\n"
        "from hydra._internal.config_loader_impl import ConfigLoaderImpl as Loader\n"
        "load = Loader.load_configuration\n"
        "def counted(*args, **kwargs):\n"
        "    events['composed'] += 1\n"
        "    return load(*args, **kwargs)\n"
        "Loader.load_configuration = counted\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "print('imported', *sys.modules)\n"
        "print('composed', events['composed'], 'processes', events['subprocess.Popen'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *finished.command()[1:]],
        cwd=finished.repository,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "all 10 steps are cached: nothing to run" in done.stdout
    *_, imported, counts = done.stdout.splitlines()
    heavy = {
        "datasets", "gcsfs", "igraph", "luigi", "matplotlib", "numpy", "pyarrow", "torch",
        "transformers",
    }  # fmt: skip
    assert not heavy & set(imported.split())
    _, composed, _, processes = counts.split()
    assert int(composed) == 1
    assert int(processes) <= 3  # git, for the record of the run
    assert sorted(finished.folder.rglob("attempts/*/*/*")) == before


@pytest.mark.parametrize(
    ("setting", "tones"), [("job: {env_set: {COLOUR: red}}", ["red"]), ("mode: MULTIRUN", ["", ""])]
)
def test_what_a_config_asks_of_hydra_itself_is_done(
    tmp_path: Path, setting: str, tones: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/painted.yaml").write_text(
        f"defaults:\n  - schema\n  - _self_\nhydra:\n  {setting}\n"
    )
    (tmp_path / "painted.py").write_text(
        "import os\n"
        "from dataclasses import dataclass\n"
        "from pipeline import Output, step\n"
        "from pipeline.experiment import ExperimentConfig, main\n"
        "@step\n"
        "def paint(out: Output, coats: int) -> None: ...\n"
        "@dataclass\n"
        "class Config(ExperimentConfig):\n"
        "    coats: int = 1\n"
        "def painted(cfg: Config) -> dict:\n"
        "    print('painted', cfg.coats, os.environ.get('COLOUR', ''))\n"
        "    return {'paint': paint(cfg.coats)}\n"
        "main(painted)\n"
    )
    asked = "coats=1,2" if len(tones) > 1 else "coats=1"
    said = script(tmp_path / "painted.py", asked, "--plan")
    shown = [line for line in said.out.splitlines() if line.startswith("painted ")]
    assert shown == [f"painted {coats} {colour}" for coats, colour in enumerate(tones, start=1)]


def test_the_first_step_of_dpo_is_ln_2_with_all_rewards_zero(finished: Desk) -> None:
    first, *_, last = map(
        json.loads, (finished.content("train_dpo") / "metrics.jsonl").read_text().splitlines()
    )
    assert first["step"] == 1
    assert math.isclose(first["loss"], math.log(2), abs_tol=1e-6)
    assert {first[f"rewards/{n}"] for n in ("chosen", "rejected", "margins")} == {0.0}
    assert first["learning_rate"] == 1e-3
    assert last["step"] == 4  # max_steps
    assert last["loss"] < first["loss"]


def test_the_result_shows_accuracy_and_margin_before_and_after(finished: Desk) -> None:
    shown = finished.here().stdout
    for text in ("before DPO", "after DPO", "pairs rewarded right", "reward margin"):
        assert text in shown
    metrics = [made.metrics for made in finished.made("evaluate")]
    for own_reference in metrics[:2]:  # the base model, and before DPO
        assert "eval_rewards/margins" not in own_reference
    margin = metrics[2]["eval_rewards/margins"]
    assert margin["low"] <= margin["value"] <= margin["high"]
    assert finished.store.content_path(finished.made("export_hf")[-1]) in shown


def test_the_exported_folder_is_the_trained_model_with_a_card(finished: Desk) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, trained = finished.content("export_hf"), finished.content("train_dpo")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    expected = AutoModelForCausalLM.from_pretrained(trained).state_dict()
    assert all(torch.equal(v, expected[k]) for k, v in model.state_dict().items())
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is 8 times 7?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    written = model.generate(**prompt, max_new_tokens=4)  # pyright: ignore
    assert written.shape[1] > prompt["input_ids"].shape[1]
    card = (folder / "README.md").read_text()
    for text in ("pairs.jsonl", "dpo.loss.beta | 0.1", "eval_rewards/accuracies", "library_name"):
        assert text in card


def test_a_changed_beta_plans_dpo_and_what_follows_it_only(finished: Desk) -> None:
    plan = finished.plan("dpo.loss.beta=0.05")
    assert set(plan) == {"train_dpo", "evaluate", "export_hf"}
    assert "config.loss.beta 0.1 → 0.05" in plan["train_dpo"]
    assert all(why.startswith("run: ") for why in plan.values())


def test_another_loss_plans_what_it_takes_and_keeps_the_reference(finished: Desk) -> None:
    plan = finished.plan("dpo/loss=ipo", "dpo.loss.beta=0.2")
    assert set(plan) == {"train_dpo", "evaluate", "export_hf"}
    plan = finished.plan("dpo/loss=orpo")
    assert set(plan) == {"train_reference_free", "evaluate", "export_hf"}
    both = ("+dpo/loss@dpo.loss.losses.a=dpo", "+dpo/loss@dpo.loss.losses.b=simpo")
    set_within = ("dpo.loss.losses.a.beta=0.3", "dpo.loss.weights.b=0.2")
    plan = finished.plan("dpo/loss=combined", *both, *set_within)
    assert set(plan) == {"train_dpo", "evaluate", "export_hf"}


def test_an_edited_prompt_reruns_from_load_preferences(finished: Desk) -> None:
    data = finished.folder / "pairs.jsonl"
    original = data.read_text()
    prompt = json.loads(original.splitlines()[0])["prompt"]
    try:
        data.write_text(original.replace(prompt, f"{prompt} Say it."))
        plan = finished.plan()
        assert "the content of train changed" in plan["load_preferences"]
        assert "import_model" not in plan
        assert "train_dpo" in plan
    finally:
        data.write_text(original)


# --- what can go wrong -------------------------------------------------------------------------


def test_malformed_rows_are_skipped_counted_and_named(finished: Desk) -> None:
    good = (finished.folder / "pairs.jsonl").read_text()
    bad = [
        {"id": "no-rejected", "prompt": "p", "chosen": "c"},
        {"id": "empty", "chosen": [], "rejected": [{"role": "user", "content": "u"}]},
        {
            "id": "wrong-order",
            "chosen": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "u"}],
            "rejected": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "v"}],
        },
    ]
    path = finished.folder / "mixed.jsonl"
    path.write_text(good + "".join(json.dumps(row) + "\n" for row in bad) + '{"prompt": "cut\n')
    shown = finished.run_here(f"data.path={path}", "only=[train_sft]").stdout
    assert "4 of 20 rows dropped" in shown
    metrics = finished.made("load_preferences")[-1].metrics
    assert metrics["dropped"] == 4
    reasons = metrics["dropped_by_reason"]
    assert reasons["no rejected"] == {"count": 1, "rows": ["no-rejected"]}
    assert reasons["empty conversation"]["rows"] == ["empty"]
    assert reasons["wrong role order"]["rows"] == ["wrong-order"]
    assert reasons["broken JSON"]["count"] == 1
    # the same pairs as before, so nothing below was made again
    assert len(finished.made("train_sft")) == 1


def test_the_full_scale_experiment_plans_without_a_hub_or_a_gpu(finished: Desk) -> None:
    desk = Desk(finished.repository, "dpo_ultrafeedback", finished.folder, ("scale=full",))
    assert set(desk.plan()) >= {"import_model", "train_sft", "train_dpo", "export_hf"}


# --- killed and started again ------------------------------------------------------------------

TRAINING = ("reference_logprobs", "train_dpo")
KILLED = (
    "only=[train_dpo]", "data.test_fraction=0.02", "dpo.max_steps=30",
    "dpo.tokens_per_forward=1", "dpo.checkpoint_every_steps=3",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "kills",
    [TRAINING[-1:], pytest.param(TRAINING, marks=pytest.mark.attack)],
    ids=["training", "scoring and training"],
)
def test_killed_and_resumed_all_files_are_bit_identical(
    finished: Desk, tmp_path: Path, kills: tuple[str, ...]
) -> None:
    """SFT trains in the same loop as DPO."""
    before = finished.copy(tmp_path)
    rows = ({"prompt": f"{n} or {n + 1}?", "chosen": f"{n}", "rejected": "No."} for n in range(350))
    (data := tmp_path / "many.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows_used = f"data.max_train={340 if len(kills) > 1 else 120}"  # scoring is to take a while
    settings = (*before.settings, f"data.path={data}", rows_used, *KILLED)
    killed = replace(before, settings=settings)
    killed.run_here("only=[train_sft]")
    there = {m.attempt for m in everything(killed.store)}

    def made(step: str) -> list[Manifest]:
        return [m for m in killed.made(step) if m.attempt not in there]

    driver = killed.start()
    for step in kills:
        progress = {"reference_logprobs": 20, "train_dpo": 10}[step]
        reached = wait_for_progress(killed, step, progress)
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        assert not made(step)
        for path in killed.folder.glob(f"store/progress/{step}/*.json"):
            path.unlink()
        with ThreadPoolExecutor() as watching:
            first = watching.submit(wait_for_progress, killed, step, 1, partial(made, step))
            if step == TRAINING[-1]:
                killed.run_here()
            else:
                driver = killed.start()
        assert first.result() > reached / 2, f"{step} began again after it had reached {reached}"

    for step in TRAINING:
        (manifest,) = made(step)
        assert undisturbed(killed.store, manifest, tmp_path / "undisturbed") == manifest.files


def undisturbed(store: Store, manifest: Manifest, folder: Path) -> Mapping[str, FileEntry]:
    """The files of a step that does once more, in one go, what has been done."""
    spec = StepSpec.from_json(store.read(f"{store.attempt_path(manifest)}/spec.json") or b"")
    again = replace(spec, key=f"{spec.key}-again", attempt=str(folder / spec.step))
    return run_attempt(again, store, Stopping()).files


def wait_for_progress(
    desk: Desk, step: str, at_least: int, over: Callable[[], object] = lambda: False
) -> float:
    """How far a running step says it is, as soon as that is at least so much; infinity if it is
    over before a slow machine has looked."""

    def reached() -> float:
        paths = desk.folder.glob(f"store/progress/{step}/*.json")
        with contextlib.suppress(FileNotFoundError):  # a step that is over removes it
            done = max((float(json.loads(path.read_text())["done"]) for path in paths), default=0)
            if done >= at_least:
                return done
        return math.inf if over() else 0

    return wait_until(reached, f"{step} comes to {at_least}", every=0.02)


# --- on other engines ----------------------------------------------------------------------------


@contextlib.contextmanager
def engine(kind: str, folder: Path) -> Iterator[list[str]]:
    """An engine that runs, as settings of an experiment."""
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        if kind == "slurm":
            slurm = stack.enter_context(slurm_cluster.slurm_cluster())
            environment, settings = slurm.environment, [f"launcher.slurm.folder={folder}/slurm"]
        else:
            ray = stack.enter_context(ray_cluster.ray_cluster())
            environment, settings = ray.environment, [f"launcher.ray.address={ray.address}"]
        for name, value in environment.items():
            patch.setenv(name, value)
        yield [f"launcher={kind}", f"launcher.{kind}.poll_seconds=1", *settings]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["slurm", pytest.param("ray", marks=() if slurm_cluster.why_not() else pytest.mark.attack)],
)
def test_an_engine_and_a_bucket_change_no_key_and_no_digest(
    finished: Desk, gcs_bucket: str, kind: str, tmp_path: Path
) -> None:
    """The engine trains first; this process does the rest, on the bucket."""
    if reason := {"slurm": slurm_cluster, "ray": ray_cluster}[kind].why_not():
        pytest.skip(f"no {kind}: {reason}")
    store = Store(f"{gcs_bucket}/{kind}-{secrets.token_hex(4)}")
    finished.run_here("only=[tokenize_preferences]", f"store={store.url}")
    with engine(kind, tmp_path) as settings:
        finished.run(*settings, "only=[train_sft]", f"store={store.url}")
    (trained,) = Catalog(store).history("train_sft")
    log = store.read(f"{store.attempt_path(trained)}/log.txt") or b""
    assert log.startswith(f"[{kind} job".encode())
    finished.run_here(f"store={store.url}")
    there = {m.key: m.digest for m in everything(store)}
    here = {m.key: m.digest for m in everything(finished.store)}  # of other tests, too
    assert there == {key: here.get(key) for key in there}
    again = finished.here(f"store={store.url}")
    assert "all 10 steps are cached: nothing to run" in again.stdout


def everything(store: Store) -> list[Manifest]:
    folder = f"{store.root}/manifests"
    names = {path.split("/")[0] for path in store.objects.sizes(folder)}
    return [manifest for name in names for manifest in Catalog(store).history(name)]


# --- the sweep that ships -------------------------------------------------------------------------


def planned(desk: Desk, *arguments: str) -> list[str]:
    """The name of every step in the plan, with what it is to be called."""
    lines = desk.here("--plan", *arguments).stdout.splitlines()
    begin = next(at for at, line in enumerate(lines) if line.strip().startswith("step "))
    return [line.strip().partition("  ")[0] for line in lines[begin + 1 : -1]]


def test_the_beta_sweep_plans_one_run_of_dpo_a_beta_and_all_else_once(
    repository: Path, tmp_path: Path
) -> None:
    desk = Desk(repository, "dpo_beta_sweep", tmp_path, ("scale=smoke",))
    plan = planned(desk, "betas=[0.02,0.1,0.5]")
    names = [step.partition(" ")[0] for step in plan]
    assert names.count("train_dpo") == 3
    assert names.count("evaluate") == 4
    for shared in ("load_preferences", "import_model", "tokenize_preferences", "train_sft",
                   "reference_logprobs"):  # fmt: skip
        assert names.count(shared) == 1
    assert names.count("report") == 1
    assert len(names) == 13
    assert {"evaluate (before DPO)", "evaluate (beta=0.02)", "evaluate (beta=0.5)"} <= set(plan)


@pytest.mark.parametrize(
    ("betas", "message"),
    [("[0.1,0.1]", "must be different numbers"), ("[-1]", "beta must be above 0")],
)
def test_betas_that_cannot_be_swept_are_one_clear_line(
    repository: Path, tmp_path: Path, betas: str, message: str
) -> None:
    desk = Desk(repository, "dpo_beta_sweep", tmp_path, ("scale=smoke", f"betas={betas}"))
    done = desk.here("--plan", check=False)
    assert done.returncode == 1
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


# --- looked at: losses side by side, divergence, KTO, reports ------------------------------------

SECTIONS = (
    "results", "steps", "curves", "samples", "data", "configuration", "provenance",
)  # fmt: skip


@pytest.fixture(scope="module")
def looked_at(finished: Desk) -> Desk:
    """The same start, gone on with in three more experiments."""
    replace(finished, script="preference_losses").run_here("losses=[dpo,simpo]")
    kl = ("kl.prompts=3", "kl.sampling.num_completions=2", "kl.sampling.max_new_tokens=8")
    finished.run_here("measure_kl=true", *kl)
    replace(finished, script="kto_ultrafeedback").run_here()
    return finished


@pytest.mark.slow
def test_losses_are_evaluated_side_by_side_from_one_start(looked_at: Desk) -> None:
    assert len(looked_at.made("train_sft")) == 1
    assert len(looked_at.made("train_dpo")) == len(looked_at.made("train_reference_free")) == 1
    compared = [made for made in looked_at.made("evaluate") if "gain/logps/margins" in made.metrics]
    compared = compared[:2]  # before and base model have nothing to be compared with
    for made in compared:
        assert 0 < made.metrics["gain/logps/margins/p"] <= 1
        for name in ("accuracies_at_equal_length", "calibration_error"):
            found = made.metrics[f"eval_rewards/{name}"]
            assert 0 <= found["low"] <= found["high"] <= 1


@pytest.mark.slow
def test_kto_learns_from_pairs_taken_apart_or_from_feedback_of_ones_own(looked_at: Desk) -> None:
    assert len(looked_at.made("train_sft")) == 1  # the same start as that of every loss over pairs
    pairs = looked_at.made("load_preferences")[0].metrics
    taken_apart = {split: 2 * pairs[split] for split in ("train", "test")}
    assert looked_at.made("unpair")[0].metrics == taken_apart
    (made,) = looked_at.made("train_kto")
    first, *_, last = Made(made, looked_at.store).records("metrics.jsonl")
    assert first["loss"] == 0.5  # policy and reference are one: weight/2
    assert {first[f"rewards/{side}"] for side in ("chosen", "rejected")} == {0.0}
    assert last["step"] == 4  # as many as DPO takes
    assert looked_at.made("evaluate")[-1].metrics["eval_rewards/margins"]["value"] > 0

    thumbs = looked_at.folder / "thumbs.jsonl"
    thumbs.write_text('{"prompt": "Good?", "completion": "Yes.", "label": true}\n')
    plan = replace(looked_at, script="kto_ultrafeedback").plan(f"feedback={thumbs}")
    assert "load_unpaired" in plan
    assert "unpair" not in plan
    assert "train_sft" not in plan


@pytest.mark.slow
def test_the_divergence_is_of_what_the_model_draws_itself(looked_at: Desk) -> None:
    (made,) = looked_at.made("measure_kl")
    assert made.metrics["prompts"] == 3
    assert made.metrics["responses"] == 6
    kl = made.metrics["kl"]
    assert kl["low"] <= kl["value"] <= kl["high"]
    assert abs(made.metrics["kl_per_token"]["value"]) < 10


@pytest.mark.slow
def test_the_report_of_a_real_sweep_and_of_real_experiments(
    looked_at: Desk, tmp_path: Path
) -> None:
    with chromium() as browser:
        screens = ((1200, "light"), (400, "dark"), (400, "light"))
        for made, screen in zip(read_runs(looked_at.store)[-3:], screens, strict=True):
            file = tmp_path / f"{made.name}.html"
            arguments = ["report", made.name, "-o", str(file), "--store", looked_at.store.url]
            result = CliRunner().invoke(app, arguments)
            assert result.exit_code == 0, result.exception
            assert result.output.strip() == str(file)
            with opened(browser, file, *screen) as seen:
                assert (seen.asked, seen.said) == ([file.as_uri()], [])
                for section in SECTIONS:
                    assert seen.page.locator(f"#{section}").is_visible()
                assert seen.page.evaluate("document.documentElement.scrollWidth") <= screen[0]
                assert grave_faults(seen.page, colours=screen == screens[0]) == []
                titles = seen.page.locator("h3").all_inner_texts()
                for title in ("What became of the rows", "Lengths in tokens", "Calibration"):
                    assert any(title in shown for shown in titles)
                expected = numbers_in_manifests(looked_at, made)
                shown = cells_of(seen.page, "evaluate")
                assert shown == {cell: expected.get(cell, []) for cell in shown}
                assert any(shown.values())
                assert len({name for name, _ in shown}) > 1


def numbers_in_manifests(looked_at: Desk, run: Run) -> dict[tuple[str, str], list[float]]:
    """Every number of each evaluation that a run made or found, by result and metric."""
    made = {manifest.attempt: manifest for manifest in looked_at.made("evaluate")}
    attempts = {entry["fingerprint"]: entry["attempt"] for entry in run.steps}
    found = {}
    for name, fingerprint in run.roots.items():
        if (manifest := made.get(attempts[fingerprint])) is not None:
            for metric, value in manifest.metrics.items():
                ends = ("value", "low", "high")
                numbers = [value[end] for end in ends] if isinstance(value, dict) else [value]
                found[name, metric] = numbers
    return found


@pytest.mark.slow
def test_snapshots_of_one_run_are_chosen_by_their_answers(repository: Path, tmp_path: Path) -> None:
    sizes = (
        "train_problems=200", "validation_problems=5", "test_problems=5", "held_out_pairs=0.5",
        "sft.max_steps=40", "dpo.batch_size=8", "dpo.max_steps=5", "dpo.snapshot_every_steps=2",
        "dpo.eval_every_steps=2",
    )  # fmt: skip
    desk = Desk(repository, "snapshots_arithmetic", tmp_path, sizes)
    shown = desk.run_here().stdout
    for name in ("SFT", "last snapshot", "chosen by margins", "chosen by answers"):
        assert name in shown
    (chosen,) = desk.made("select_model")
    assert chosen.metrics["chosen"] in ("step-2", "step-4")
    assert len(desk.made("train_dpo")) == 1
