"""Online runs that train adapters, and online runs of several processes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from online_bed import EAGER, log_of, rl, rollouts_of, run
from rank_processes import run_ranks
from safetensors.torch import load_file
from tiny_models import folder_bytes, model_folder

from steps.models.config import Dtype, LoraConfig
from steps.models.ranks import together
from steps.models.workplace import Workplace
from steps.online.methods.distill import Distill
from steps.online.methods.policy_gradient import PolicyGradient
from steps.online.methods.raft import Raft
from steps.online.online_run import Folders, run_replay
from steps.online.rollouts import write_rollouts
from steps.online.sampled import weights_digest

ADAPTED: dict[str, Any] = {"lora": LoraConfig(r=4, target_modules=["q_proj", "v_proj"])}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def adapted(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three iterations that trains adapters."""
    work = tmp_path_factory.mktemp("adapted")
    run(policy, work, rl(**ADAPTED), 3)
    return work


def trained(work: Path) -> dict[str, bytes]:
    return folder_bytes(work / "out" / "model") | folder_bytes(work / "out" / "state")


# --- adapters -------------------------------------------------------------------------------------


def test_what_is_sampled_is_drawn_by_the_base_with_the_adapters_merged(
    policy: Path, adapted: Path, tmp_path: Path
) -> None:
    for line in log_of(adapted):
        assert line["ratio/at_start"] == 0
        assert line["mismatch/k3"] < 1e-9
    run(policy, tmp_path, rl(**ADAPTED), 1)
    exported = load_file(tmp_path / "out/model/model.safetensors")
    drawn_by = {rollout.iteration: rollout.weights for rollout in rollouts_of(adapted)}
    assert drawn_by[1] == weights_digest(exported) != drawn_by[0]
    assert (adapted / "out/model/adapter/adapter_model.safetensors").is_file()


def test_segments_and_replays_of_adapters_are_one_run(
    policy: Path, adapted: Path, tmp_path: Path
) -> None:
    config = rl(**ADAPTED)
    run(policy, tmp_path / "one", config, 1)
    run(policy, tmp_path / "two", config, 2, start=tmp_path / "one/out/state")
    assert trained(tmp_path / "two") == trained(adapted)
    write_rollouts(folder := tmp_path / "rollouts", rollouts_of(adapted))
    run_replay(Folders(policy), config, folder, Workplace(tmp_path / "out", tmp_path / "s"))
    assert trained(tmp_path) == trained(adapted)


def test_adapters_of_another_base_are_refused(policy: Path, adapted: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give the policy of the first segment"):
        run(adapted / "out/model", tmp_path, rl(**ADAPTED), 1, start=adapted / "out/state")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"lora": replace(ADAPTED["lora"], alpha=64.0)},
            r"made with lora\.alpha=32\.0, and this segment has 64\.0",
        ),
        (
            {"lora": replace(ADAPTED["lora"], rslora=True)},
            r"made with lora\.rslora=False, and this segment has True",
        ),
        ({"lora": replace(ADAPTED["lora"], r=8)}, "of other adapters .*; give policy and lora of"),
        ({"lora": None}, "the state of another model or of other adapters"),
        (
            {"dtype": Dtype.bfloat16, "master_weights": False},
            r"with dtype \(of updates\)=float32, and this segment has bfloat16",
        ),
        (
            {"optimizer": replace(EAGER, eight_bit=True)},
            r"with optimizer\.eight_bit=False, and this segment has True",
        ),
    ],
)
def test_settings_with_which_a_state_means_something_else_are_refused(
    policy: Path, adapted: Path, tmp_path: Path, changed: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        run(policy, tmp_path, rl(**ADAPTED | changed), 1, start=adapted / "out/state")


def test_dropout_is_refused_where_the_policy_is_compared_with_itself() -> None:
    dropped = LoraConfig(dropout=0.1)
    with pytest.raises(ValueError, match=r"lora\.dropout is 0\.1"):
        rl(lora=dropped, method=PolicyGradient())
    rl(lora=dropped, method=Raft())


# --- several processes ----------------------------------------------------------------------------


def run_together(
    policy: Path, work: Path, settings: dict[str, Any], iterations: int, teacher: Path | None
) -> None:
    with together() as ranks:
        place = Workplace(work / "out", work / "scratch", ranks=ranks)
        run(policy, work, rl(**settings), iterations, place=place, teacher=teacher)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{}, ADAPTED, {"method": Distill(beta=0.5, top_k=8)}],
    ids=["all weights", "adapters", "a teacher"],
)
def test_two_processes_draw_the_same_bits_and_train_the_same_up_to_rounding(
    policy: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    teacher = model_folder(tmp_path / "teacher", seed=1) if "method" in settings else None
    settings = settings | {"checkpoint_every_steps": 1}
    run(policy, tmp_path / "alone", rl(**settings), 2, teacher=teacher)
    assert run_ranks(run_together, policy, tmp_path / "two", settings, 2, teacher) == [0, 0]
    first, second = (rollouts_of(tmp_path / name)[:24] for name in ("alone", "two"))
    assert [(r.ids, r.logps, r.rewards) for r in first] == [
        (r.ids, r.logps, r.rewards) for r in second
    ]
    one, two = (load_file(tmp_path / f"{n}/out/model/model.safetensors") for n in ("alone", "two"))
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, two[name], rtol=1e-4, atol=1e-6)
    # The state of two processes is one file, with which one process goes on.
    state = tmp_path / "two/out/state"
    run(policy, tmp_path / "on", rl(**settings), 1, start=state, teacher=teacher)
    assert log_of(tmp_path / "on")[0]["step"] == 3
