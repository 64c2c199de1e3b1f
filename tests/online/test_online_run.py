"""Online runs: what the first update is, and that weights follow from the recipe alone."""

import json
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from shutil import copy, copytree
from typing import Any

import pytest
import torch
from online_bed import ASKED, even_share, log_of, rl, rollouts_of, run
from safetensors.torch import load_file, save_file
from tiny_models import VOCABULARY, folder_bytes, llama, model_folder, word_tokenizer

from steps.distillation.online_teacher import Teachers
from steps.generation.slots import SlotEngine
from steps.losses.dpo import Dpo
from steps.models.config import LoraConfig, Quantization
from steps.models.workplace import Left, Workplace
from steps.online.config import RlConfig
from steps.online.iteration_rollouts import Kept
from steps.online.methods.distill import Distill
from steps.online.methods.online_dpo import OnlineDpo
from steps.online.methods.policy_gradient import (
    Advantage,
    Kl,
    OffPolicy,
    Over,
    PolicyGradient,
    Ratio,
)
from steps.online.methods.raft import Raft
from steps.online.online_run import Folders, run_replay
from steps.online.rollouts import Rollout, read_rollouts, write_rollouts
from steps.online.sampled import Judge
from steps.training.config import OptimizerConfig, Schedule

NOISY = PolicyGradient(
    advantage=Advantage.group_std,
    over=Over.token,
    kl=Kl.k3_weighted,
    kl_weight=0.05,
    off_policy=OffPolicy.truncate,
)
"""Looks at everything: ratio, reference and sampler."""


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of another shape than the policy."""
    return model_folder(tmp_path_factory.mktemp("teacher"), lambda: llama(layers=2), seed=1)


def weights(work: Path) -> dict[str, bytes]:
    """The trained model and the optimiser's state."""
    return folder_bytes(work / "out" / "model") | folder_bytes(work / "out" / "state")


def record(work: Path, folder: Path) -> Path:
    """The rollouts of a run, as an artifact has them."""
    write_rollouts(folder, rollouts_of(work))
    for file in (work / "scratch" / "teacher").glob("*.parquet"):
        copy(file, folder)
    return folder


# --- the first update -----------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [Ratio.token, Ratio.sequence, Ratio.detached])
def test_the_first_update_has_ratio_1_no_clipping_no_kl_and_a_gradient(
    policy: Path, tmp_path: Path, ratio: Ratio
) -> None:
    method = replace(NOISY, ratio=ratio)
    run(policy, tmp_path, rl(method=method))
    first, second = log_of(tmp_path)
    clipped = ("clip_ratio/low_mean", "clip_ratio/high_mean")
    for name in ("ratio/at_start", "ratio/deviation", *clipped, "kl/k1", "kl/k3"):
        assert first[name] == 0
    assert first["grad_norm"] > 0
    assert second["kl/k3"] > 0
    assert second["ratio/at_start"] == 0


def one_prompt_teaches(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Rewards of which all but those of an iteration's first prompt are equal."""
    first, equal = rollouts[0].row, {"even": 0.5}
    return [r if r.row == first else replace(r, rewards=equal) for r in even_share(rollouts)]


@pytest.mark.parametrize("judge", [even_share, one_prompt_teaches])
def test_one_update_saves_the_scoring_pass_and_changes_no_bit(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, judge: Judge
) -> None:
    config = rl(method=PolicyGradient(kl=Kl.k3, kl_weight=0.05))
    run(policy, tmp_path / "once", config, judge=judge)
    monkeypatch.setattr("steps.online.updates.scores_first", lambda *_: True)
    run(policy, tmp_path / "twice", config, judge=judge)
    assert weights(tmp_path / "once") == weights(tmp_path / "twice")
    assert log_of(tmp_path / "once") == log_of(tmp_path / "twice")
    once = rollouts_of(tmp_path / "once")
    assert once == rollouts_of(tmp_path / "twice")
    assert all(rollout.policy_logps for rollout in once)


def test_a_refused_update_leaves_nothing_from_which_a_mended_engine_would_go_on(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_weights = SlotEngine.update_weights

    def keeps_its_first(engine: SlotEngine, source: Any, digest: str) -> None:
        if not engine.weights:
            replace_weights(engine, source, digest)
        engine._weights = digest

    config = rl(max_mismatch=1e-6, checkpoint_every_steps=1)
    monkeypatch.setattr(SlotEngine, "update_weights", keeps_its_first)
    with pytest.raises(ValueError, match="iteration 2: log-probabilities of trainer and sampler"):
        run(policy, tmp_path, config, 3)
    monkeypatch.undo()
    run(policy, tmp_path, config, 3)
    run(policy, tmp_path / "undisturbed", config, 3)
    assert weights(tmp_path) == weights(tmp_path / "undisturbed")


def test_later_updates_of_an_iteration_move_away_from_its_start(
    policy: Path, tmp_path: Path
) -> None:
    run(policy, tmp_path, rl(method=NOISY, minibatches=2, inner_epochs=3), 1)
    (only,) = log_of(tmp_path)
    assert only["updates"] == 6
    assert only["ratio/at_start"] == 0
    assert only["ratio/deviation"] > 0
    assert only["clip_ratio/low_mean"] + only["clip_ratio/high_mean"] > 0


def test_the_sampler_is_the_policy_up_to_rounding_and_each_iteration_says_so(
    policy: Path, tmp_path: Path
) -> None:
    run(policy, tmp_path, rl(), 3)
    for line in log_of(tmp_path):
        assert line["mismatch/k3"] < 1e-9
        assert 0 < line["mismatch/largest"] < 1e-4


@pytest.mark.parametrize("method", [PolicyGradient(skip_without_signal=False), Raft(0.3)])
def test_kl_to_the_start_and_speeds_are_told_and_change_no_weight(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], method: Any
) -> None:
    """Of one update with all completions, a method with a reference tells the same divergence."""
    told: list[Any] = []
    place = Workplace(
        tmp_path / "out", tmp_path / "scratch", lambda *progress: told.append(progress)
    )
    run(policy, tmp_path, rl(method=method, log_kl=True), 3, place=place)
    run(policy, tmp_path / "plain", rl(method=method), 3)
    log, plain = log_of(tmp_path), log_of(tmp_path / "plain")
    assert [{n: v for n, v in line.items() if n[:3] != "kl/"} for line in log] == plain
    assert weights(tmp_path) == weights(tmp_path / "plain")
    assert log[0]["kl/k1"] == log[0]["kl/k3"] == 0 < log[1]["kl/k3"]
    if isinstance(method, PolicyGradient):
        bound = replace(method, kl=Kl.k3, kl_weight=1e-9)
        run(policy, tmp_path / "bound", rl(method=bound), 2)
        again = log_of(tmp_path / "bound")[1]
        for name in ("kl/k1", "kl/k3"):
            assert log[1][name] == pytest.approx(again[name], rel=1e-4)
    speeds = told[-1][2].keys() - log[-1].keys()
    assert {name.partition("/")[2] for name in speeds} == {"sampling", "updating"}
    assert "iteration 3  seconds/sampling" in capsys.readouterr().out


# --- weights follow from the recipe ---------------------------------------------------------------


@pytest.fixture(scope="module")
def method(request: pytest.FixtureRequest) -> PolicyGradient:
    return getattr(request, "param", NOISY)


each_method = pytest.mark.parametrize(
    "method",
    [
        pytest.param(NOISY, id="noisy"),
        pytest.param(Distill(), id="distill", marks=pytest.mark.slow),
        pytest.param(Distill(beta=0.5, reward_weight=0.5, top_k=8), id="divergence"),
    ],
    indirect=True,
    scope="module",
)


def with_teacher(method: PolicyGradient, teacher: Path) -> dict[str, Any]:
    return {"teacher": teacher} if method.needs_teacher else {}


@pytest.fixture(scope="module")
def three(
    policy: Path, teacher: Path, method: PolicyGradient, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run of three iterations with two updates each."""
    work = tmp_path_factory.mktemp("three")
    run(
        policy,
        work,
        rl(method=method, minibatches=2, log_kl=True),
        3,
        **with_teacher(method, teacher),
    )
    return work


@each_method
def test_two_segments_with_any_slots_are_one_run(
    policy: Path, teacher: Path, method: PolicyGradient, three: Path, tmp_path: Path
) -> None:
    config, more = (
        rl(method=method, minibatches=2, log_kl=True, slots=3),
        with_teacher(method, teacher),
    )
    run(policy, tmp_path / "one", config, 1, **more)
    state = tmp_path / "one" / "out" / "state"
    run(policy, tmp_path / "two", config, 2, start=state, **more)
    assert weights(tmp_path / "two") == weights(three)
    assert log_of(tmp_path / "one") + log_of(tmp_path / "two") == log_of(three)


def test_two_segments_with_a_falling_rate_are_one_run(policy: Path, tmp_path: Path) -> None:
    falling = OptimizerConfig(learning_rate=1e-2, warmup_steps=1)
    config = rl(optimizer=falling, horizon=4)
    run(policy, tmp_path / "whole", config, 4)
    run(policy, tmp_path / "one", config, 3)
    state = tmp_path / "one" / "out" / "state"
    run(policy, tmp_path / "two", config, 1, start=state)
    assert weights(tmp_path / "two") == weights(tmp_path / "whole")
    rates = [line["learning_rate"] for line in log_of(tmp_path / "whole")]
    assert rates == pytest.approx([0.5e-2, 1e-2, 2e-2 / 3, 1e-2 / 3])
    with pytest.raises(ValueError, match="horizon must reach to the run's last iteration"):
        run(policy, tmp_path / "more", config, 2, start=state)
    (state / "state.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="is not the whole state of a run"):
        run(policy, tmp_path / "damaged", config, 1, start=state)
    (state / "state.json").write_text("{}")
    with pytest.raises(ValueError, match="does not say how far a run came"):
        run(policy, tmp_path / "lost", config, 1, start=state)


@each_method
def test_a_run_is_its_rollouts(
    policy: Path, method: PolicyGradient, three: Path, tmp_path: Path
) -> None:
    config = rl(method=method, minibatches=2, log_kl=True)
    rollouts = record(three, tmp_path / "rollouts")
    run_replay(Folders(policy), config, rollouts, Workplace(tmp_path / "out", tmp_path / "s"))
    assert weights(tmp_path) == weights(three)
    assert log_of(tmp_path) == log_of(three)


# --- sampling behind training ---------------------------------------------------------------------

BEHIND = rl(method=NOISY, lag=1, checkpoint_every_steps=2)


class InTurn(Executor):
    """Does at once what it is asked for, in the thread that asks."""

    def submit(self, do: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(do(*arguments, **named))
        return done


@pytest.fixture(scope="module")
def behind(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four iterations whose sampling overlaps with training."""
    work = tmp_path_factory.mktemp("behind")
    run(policy, work, BEHIND, 4)
    return work


def test_each_iteration_is_drawn_by_the_weights_of_the_one_before(behind: Path) -> None:
    rollouts = rollouts_of(behind)
    of = [{r.weights for r in rollouts if r.iteration == i} for i in range(4)]
    assert of[0] == of[1]
    assert len(of[1] | of[2] | of[3]) == 3
    first, second, *_ = log_of(behind)
    assert first["mismatch/k3"] < 1e-9 < second["mismatch/k3"]
    assert second["ratio/at_start"] == 0


def test_sampling_that_overlaps_with_training_changes_no_bit(
    policy: Path, behind: Path, tmp_path: Path
) -> None:
    run(policy, tmp_path, BEHIND, 4, thread=InTurn())
    assert weights(tmp_path) == weights(behind)
    assert log_of(tmp_path) == log_of(behind)


def test_segments_and_replays_of_a_run_with_a_lag_are_one_run(
    policy: Path, behind: Path, tmp_path: Path
) -> None:
    run(policy, tmp_path / "one", BEHIND, 2)
    state = tmp_path / "one" / "out" / "state"
    run(policy, tmp_path / "two", BEHIND, 2, start=state)
    assert weights(tmp_path / "two") == weights(behind)
    rollouts = record(behind, tmp_path / "rollouts")
    run_replay(Folders(policy), BEHIND, rollouts, Workplace(tmp_path / "out", tmp_path / "s"))
    assert weights(tmp_path) == weights(behind)
    with pytest.raises(ValueError, match="all segments of a run have one lag"):
        run(policy, tmp_path / "other", replace(BEHIND, lag=2), 2, start=state)


def leave_after(
    count: int, policy: Path, work: Path, config: RlConfig, iterations: int
) -> list[int]:
    """Begin a run of so many iterations, which is told to leave after `count`; which it did."""
    done: list[int] = []
    place = Workplace(
        work / "out",
        work / "scratch",
        on_progress=lambda iterations, total, metrics: done.append(iterations),
        stopping=lambda: len(done) >= count,
    )
    with pytest.raises(Left):
        run(policy, work, config, iterations, place=place)
    return done


def test_a_recording_has_the_trainers_own_logps(three: Path, tmp_path: Path) -> None:
    rollouts = list(read_rollouts(record(three, tmp_path / "rollouts")))
    assert len(rollouts) == 3 * 4 * 6
    assert [r.iteration for r in rollouts] == sorted(r.iteration for r in rollouts)
    for rollout in rollouts:
        assert rollout.policy_logps is not None
        assert rollout.policy_logps == pytest.approx(rollout.logps, abs=1e-5)
    assert len({rollout.weights for rollout in rollouts}) == 3


def test_a_run_that_is_told_to_leave_while_it_samples_keeps_what_it_has_learnt(
    policy: Path, three: Path, tmp_path: Path
) -> None:
    config = rl(method=NOISY, minibatches=2, log_kl=True)
    assert leave_after(2, policy, tmp_path, config, 3) == [1, 2]
    assert (tmp_path / "scratch" / "checkpoints" / "step-000002").is_dir()
    run(policy, tmp_path, config, 3)
    assert weights(tmp_path) == weights(three)
    assert log_of(tmp_path) == log_of(three)


def test_rollouts_in_scratch_that_other_weights_drew_are_drawn_again(
    policy: Path, three: Path, tmp_path: Path
) -> None:
    config = rl(method=NOISY, minibatches=2, log_kl=True)
    kept = Kept(tmp_path / "scratch" / "rollouts")
    for number, rollout in enumerate(read_rollouts(record(three, tmp_path / "rollouts"))):
        if number == 0:
            kept.put(0, [replace(rollout, weights="of another model")])
    (tmp_path / "scratch" / "rollouts" / "iteration-000001").mkdir()
    run(policy, tmp_path, config, 3)
    assert weights(tmp_path) == weights(three)


# --- other methods, and what is left out ----------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "iterations"), [(Raft(least_reward=0.6), 8), (OnlineDpo(loss=Dpo(beta=0.5)), 12)]
)
def test_every_method_raises_the_reward(
    policy: Path, tmp_path: Path, method: Any, iterations: int
) -> None:
    run(policy, tmp_path, rl(method=method, completions=8), iterations)
    rewards = [line["reward"] for line in log_of(tmp_path)]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1


def test_completions_without_a_verdict_are_left_out_and_counted(
    policy: Path, tmp_path: Path
) -> None:
    def undecided(rollouts: Any) -> list[Any]:
        judged = even_share(rollouts)
        return [replace(r, rewards={}) if r.k in (0, 3) or r.row == "row-1" else r for r in judged]

    config = rl(method=PolicyGradient(), prompts=10)
    run(policy, tmp_path, config, 1, judge=undecided)
    (line,) = log_of(tmp_path)
    assert line["completions/unscorable"] == 9 * 2 + 6
    assert line["updates"] == 1


def test_an_update_of_prompts_that_all_lack_verdicts_is_one_of_those_that_are_there(
    policy: Path, tmp_path: Path
) -> None:
    """The one prompt whose completions all have a verdict teaches nothing."""

    def undecided(rollouts: Any) -> list[Any]:
        equal = {"even": 1.0}
        return [
            replace(r, rewards=equal if r.row == "row-0" else {} if r.k == 5 else r.rewards)
            for r in even_share(rollouts)
        ]

    def lacking(rollouts: Any) -> list[Any]:
        return [replace(r, rewards={} if r.row == "row-0" else r.rewards) for r in rollouts]

    config = rl(prompts=10, method=PolicyGradient())
    run(policy, tmp_path / "with", config, 1, judge=undecided)
    run(policy, tmp_path / "without", config, 1, judge=lambda r: lacking(undecided(r)))
    assert log_of(tmp_path / "with")[0]["updates"] == 1
    one, other = (folder_bytes(tmp_path / name / "out/model") for name in ("with", "without"))
    assert one == other


def test_a_run_with_nothing_to_learn_changes_no_weight_and_says_so(
    policy: Path, tmp_path: Path
) -> None:
    def equal(rollouts: Any) -> list[Any]:
        return [replace(r, rewards={"same": 0.1}) for r in rollouts]

    told = run(policy, tmp_path, rl(), 2, judge=equal)
    assert "no iteration had anything to learn" in told["notices"][0]
    assert [line["updates"] for line in log_of(tmp_path)] == [0, 0]
    assert log_of(tmp_path)[0]["frac_reward_zero_std"] == 1
    trained = folder_bytes(tmp_path / "out" / "model")["model.safetensors"]
    assert trained == folder_bytes(policy)["model.safetensors"]


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"temperature": 0.7}, "draw at temperature 1"),
        ({"completions": 1}, "completions must be a whole number of at least 2"),
        ({"optimizer": OptimizerConfig()}, "horizon must be a number"),
        (
            {"optimizer": OptimizerConfig(schedule=Schedule.constant, warmup_fraction=0.1)},
            "warmup_fraction is a share of horizon iterations",
        ),
        ({"max_mismatch": 0.0}, "max_mismatch must be above 0 or null"),
        ({"max_mismatch": 1.0, "method": Raft()}, "raft computes no log-probabilities to compare"),
        ({"minibatches": 0}, "minibatches must be a whole number of at least 1"),
        ({"minibatches": 5}, "minibatches must be at most prompts, 4"),
        ({"lag": -1}, "lag must be a whole number of at least 0"),
        ({"lag": 1, "lora": LoraConfig()}, "leave out lag or lora"),
        ({"lag": 1, "method": Distill(beta=1.0, on_policy=0.5)}, "or set method.on_policy=1"),
        ({"lora": LoraConfig(quantization=Quantization.nf4)}, "needs lora.quantization=null"),
    ],
)
def test_settings_that_would_train_on_something_else_are_refused(settings: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        rl(**settings)


def test_a_recording_of_longer_completions_than_the_loss_divides_by_is_refused(
    policy: Path, three: Path, tmp_path: Path
) -> None:
    folder, place = record(three, tmp_path / "rollouts"), Workplace(tmp_path, tmp_path / "s")
    with pytest.raises(
        ValueError, match=r"that of the sampling, and a completion has 7 tokens, got 6"
    ):
        run_replay(Folders(policy), rl(max_new_tokens=6), folder, place)


@pytest.mark.parametrize("other", ["reference", "rollouts"])
def test_tokens_mean_the_same_to_the_policy_and_its_reference_and_in_its_rollouts(
    other: str, policy: Path, three: Path, tmp_path: Path
) -> None:
    folders = {"rollouts": record(three, tmp_path / "rollouts")}
    for name in ("policy", "reference"):
        folders[name] = Path(copytree(policy, tmp_path / name))
    for name, folder in folders.items():
        word_tokenizer(backwards=name == other).save_pretrained(folder)
    start = Folders(folders["policy"], reference=folders["reference"])
    place = Workplace(tmp_path / "out", tmp_path / "scratch")
    told = {"reference": "take a reference with the policy's", "rollouts": "sample rollouts with"}
    with pytest.raises(ValueError, match=told[other]):
        run_replay(start, rl(method=NOISY, minibatches=2, log_kl=True), folders["rollouts"], place)


def test_what_does_not_fit_a_teacher_is_one_sentence(
    policy: Path, teacher: Path, three: Path, tmp_path: Path
) -> None:
    folders = enumerate((policy, policy, teacher))
    student, other, broken = (Path(copytree(of, tmp_path / f"{n}")) for n, of in folders)
    word_tokenizer().save_pretrained(student)
    word_tokenizer(backwards=True).save_pretrained(other)
    weights = load_file(broken / "model.safetensors")
    weights["model.norm.weight"][3] = torch.nan
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    turned = Path(copytree(teacher, tmp_path / "turned"))
    rotation = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    changed = {"rope_parameters": rotation, "max_position_embeddings": 8}
    config = json.loads((turned / "config.json").read_text())
    (turned / "config.json").write_text(json.dumps(config | changed))
    wide = llama()
    wide.resize_token_embeddings(VOCABULARY + 8)
    wide.save_pretrained(large := tmp_path / "large")
    for method, start, of, error, told in (
        (
            Distill(),
            policy,
            None,
            ValueError,
            "distill learns from a teacher; give train_online",
        ),
        (Raft(), policy, teacher, ValueError, "raft learns from no teacher; leave teacher out"),
        (Distill(), student, other, ValueError, "they must share one vocabulary|another tokenizer"),
        (Distill(), policy, large, ValueError, "gives 72 tokens, and the student in .* has 64"),
        (
            Distill(),
            policy,
            broken,
            FloatingPointError,
            r"teacher in .*\(row 'row-.'\) .* not finite",
        ),
        (
            Distill(),
            policy,
            turned,
            ValueError,
            "judge a token by how long the completion becomes: beyond 8 tokens",
        ),
        (
            Distill(),
            policy,
            Teachers({"a": teacher, "b": large}, {}),
            ValueError,
            r"the teachers a, b give \[64, 72\] tokens; they must share one",
        ),
    ):
        with pytest.raises(error, match=told):
            run(start, tmp_path / "work", rl(method=method), 1, teacher=of)
    for name, told in ((None, "names no teacher"), ("c", "names the teacher 'c'")):
        with pytest.raises(
            ValueError, match=f"row 'row-0' {told}, and there are a, b; FormatChoice"
        ):
            Teachers({"a": teacher, "b": policy}, {"row-0": name})
    bare, place = record(three, tmp_path / "bare"), Workplace(tmp_path, tmp_path / "s")
    with pytest.raises(ValueError, match="has no teacher's log-probabilities; take rollouts of"):
        run_replay(Folders(policy), rl(method=Distill()), bare, place)
    run(policy, tmp_path / "taught", rl(method=Distill()), 1, teacher=teacher)
    taught = record(tmp_path / "taught", tmp_path / "rollouts")
    with pytest.raises(ValueError, match="keeps 1 of 64 tokens, and the method reads 8; set top_k"):
        run_replay(Folders(policy), rl(method=Distill(beta=0.5, top_k=8)), taught, place)


def test_of_several_teachers_each_teaches_its_own_rows(
    policy: Path, teacher: Path, tmp_path: Path
) -> None:
    config = rl(method=Distill(beta=0.5, top_k=8), minibatches=2)
    third = model_folder(tmp_path / "third", seed=2)
    turns = {row: "ab"[n % 2] for n, (row, _) in enumerate(ASKED.prompts)}
    all_b = dict.fromkeys(turns, "b")

    def after(name: str, of: Path | Teachers) -> dict[str, bytes]:
        run(policy, tmp_path / name, config, 2, teacher=of)
        return weights(tmp_path / name)

    alone = after("alone", teacher)
    assert after("twice", Teachers({"a": teacher, "b": teacher}, turns)) == alone
    assert after("all b", Teachers({"a": third, "b": teacher}, all_b)) == alone
    mixed = after("mixed", Teachers({"a": third, "b": teacher}, turns))
    assert mixed != alone
    rollouts = record(tmp_path / "mixed", tmp_path / "rollouts")
    run_replay(Folders(policy), config, rollouts, Workplace(tmp_path / "out", tmp_path / "s"))
    assert weights(tmp_path) == mixed


def test_a_teacher_teaches_completions_without_rewards(
    policy: Path, teacher: Path, tmp_path: Path
) -> None:
    def judge(rollouts: Sequence[Rollout]) -> list[Rollout]:
        return [replace(r, rewards={}) if r.k else r for r in even_share(rollouts)]

    method = Distill(reward_weight=0.5)
    run(policy, tmp_path, rl(method=method), 20, teacher=teacher, judge=judge)
    first, *_, last = log_of(tmp_path)
    assert last["teacher/reverse_kl"] < 0.7 * first["teacher/reverse_kl"]
    drawn = [r for r in rollouts_of(tmp_path) if r.iteration == 0]
    assert all(rollout.policy_logps for rollout in drawn)
    rewards = [r.reward for r in drawn if r.rewards]
    assert len(rewards) == first["completions/unscorable"] / 5 == 4
    assert first["reward"] == pytest.approx(sum(rewards) / 4)


@pytest.mark.parametrize(
    "cut", [{"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 50}, {"min_p": 0.1}]
)
def test_a_recording_of_a_part_of_the_distribution_is_refused_where_tokens_are_weighed(
    policy: Path, three: Path, tmp_path: Path, cut: dict[str, float]
) -> None:
    folder = record(three, tmp_path / "rollouts")
    (folder / "engine.json").write_text(json.dumps({"engine": "another", **cut}))
    with pytest.raises(ValueError, match="the policy was not drawn from as it is"):
        run_replay(Folders(policy), rl(), folder, Workplace(tmp_path, tmp_path / "s"))
    if "top_p" not in cut:
        return
    for method in (Raft(least_reward=0.0), OnlineDpo()):
        place = Workplace(tmp_path / method.name, tmp_path / f"{method.name}-scratch")
        run_replay(Folders(policy), rl(method=method), folder, place)
        assert (place.output / "model" / "model.safetensors").is_file()
