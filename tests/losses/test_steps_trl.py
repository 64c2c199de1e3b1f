"""Twenty optimiser steps beside TRL's `DPOTrainer` for losses that see tokens, a batch or another
divergence: the same model, pairs, order and rate, in float32. Skipped where TRL is not installed.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tiny_models import log_of
from trl_records import records

from benchmarks import trl_steps
from steps.losses.apo_down import ApoDown
from steps.losses.apo_zero import ApoZero
from steps.losses.base import ReferenceLoss
from steps.losses.dpo import Dpo
from steps.losses.hinge import Hinge
from steps.losses.ipo import Ipo
from steps.losses.robust import Robust
from steps.losses.token_level.ld_dpo import LdDpo
from steps.losses.whole_batch.aot import Aot
from steps.losses.whole_batch.aot_unpaired import AotUnpaired
from steps.losses.with_reference.bco_pair import BcoPair
from steps.losses.with_reference.discopop import Discopop
from steps.losses.with_reference.exo_pair import ExoPair
from steps.losses.with_reference.f_dpo import Divergence, FDpo
from steps.losses.with_reference.nca_pair import NcaPair
from steps.losses.with_reference.sigmoid_norm import SigmoidNorm
from steps.losses.with_reference.sppo_hard import SppoHard
from steps.losses.with_reference.wpo import Wpo
from steps.models.workplace import Workplace
from steps.scoring.reference import run_reference
from steps.training.config import DpoConfig, OptimizerConfig, Schedule
from steps.training.recipes import run_dpo

pytest.importorskip("trl", minversion="1.16")

BETA = trl_steps.BETA
ALPHA = {"f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": 0.75}
CASES: dict[str, tuple[ReferenceLoss, dict[str, Any]]] = {
    "hinge": (Hinge(BETA), {"loss_type": "hinge"}),
    "ipo": (Ipo(BETA), {"loss_type": "ipo"}),
    "robust": (Robust(BETA, label_smoothing=0.1), {"loss_type": "robust", "label_smoothing": 0.1}),
    "apo_zero": (ApoZero(BETA), {"loss_type": "apo_zero"}),
    "apo_down": (ApoDown(BETA), {"loss_type": "apo_down"}),
    "wpo": (Wpo(BETA, align=True), {"use_weighting": True}),
    "exo_pair": (
        ExoPair(BETA, label_smoothing=0.1),
        {"loss_type": "exo_pair", "label_smoothing": 0.1},
    ),
    "nca_pair": (NcaPair(BETA), {"loss_type": "nca_pair"}),
    "bco_pair": (BcoPair(BETA), {"loss_type": "bco_pair"}),
    "sppo_hard": (SppoHard(BETA), {"loss_type": "sppo_hard"}),
    "discopop": (Discopop(BETA), {"loss_type": "discopop"}),
    "sigmoid_norm": (SigmoidNorm(BETA), {"loss_type": "sigmoid_norm"}),
    "aot": (Aot(BETA), {"loss_type": "aot"}),
    "aot_unpaired": (AotUnpaired(BETA), {"loss_type": "aot_unpaired"}),
    "forward_kl": (FDpo(BETA, Divergence.forward_kl), {"f_divergence_type": "forward_kl"}),
    "js": (FDpo(BETA, Divergence.js), {"f_divergence_type": "js_divergence"}),
    "alpha": (FDpo(BETA, Divergence.alpha, 0.25), ALPHA),
    "ld_dpo": (LdDpo(BETA, alpha=0.25), {"ld_alpha": 0.25}),
}


@dataclass(frozen=True)
class Start:
    """A folder with a model and its reference, and the run that starts there."""

    folder: Path
    config: DpoConfig


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    folder = tmp_path_factory.mktemp("trl")
    trl_steps.write_model(folder / "model")
    optimizer = OptimizerConfig(trl_steps.RATE, Schedule.constant)
    config = DpoConfig(batch_size=trl_steps.BATCH_SIZE, optimizer=optimizer, loss=Dpo(BETA))
    place = Workplace(folder / "reference", folder / "reference-scratch")
    run_reference(folder / "model", records(), config.reference(), place)
    return Start(folder, config)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_step_has_the_loss_that_trl_has(
    start: Start,
    tmp_path: Path,
    name: str,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loss, settings = CASES[name]
    monkeypatch.syspath_prepend(repository / "benchmarks")
    from benchmarks import dpo_trl

    monkeypatch.setitem(dpo_trl.SETTINGS, "default", settings)
    job = {**trl_steps._job(start.folder), "output": str(tmp_path / "theirs")}
    (tmp_path / "job.json").write_text(json.dumps(job))
    dpo_trl.main(str(tmp_path / "job.json"), str(tmp_path / "report.json"))
    theirs = [step["loss"] for step in json.loads((tmp_path / "report.json").read_text())["log"]]

    config = replace(start.config, loss=loss)
    place = Workplace(tmp_path / "ours", tmp_path / "scratch")
    run_dpo(start.folder / "model", records(), start.folder / "reference", config, place)
    ours = [step["loss"] for step in log_of(tmp_path / "ours")]
    assert len(ours) == 20
    assert ours == pytest.approx(theirs, rel=5e-5, abs=1e-4)
    assert max(theirs) - min(theirs) > 0.01
