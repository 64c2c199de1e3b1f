"""``train_on_rollouts``: train a policy on completions that exist already."""

from dataclasses import replace

from pipeline import Metrics, Output, step
from steps.glue.own_tokens import with_template_of
from steps.glue.workplace_of import at_work
from steps.kinds import Judged, Model, OnlineState, OnlineTraining
from steps.online.config import RlConfig


@step(makes=OnlineTraining, estimate="steps.prices.of_online:REPLAYED")
def train_on_rollouts(
    out: Output,
    rollouts: Judged,
    policy: Model,
    config: RlConfig = RlConfig(),
    start: OnlineState | None = None,
    reference: Model | None = None,
) -> Metrics:
    """Write the trained ``model`` and its ``state``, as ``train_online`` does, without sampling.

    With ``run["rollouts"]`` and the arguments of that run, this step gives that run's weights, bit
    for bit. Other rollouts come from another policy: ``mismatch/k3`` measures how far that policy
    is from the one in training, and ``method.off_policy`` corrects for the difference.

    Args:
        rollouts: the rollouts of an online run; or the output of ``sample_rollouts`` and ``judge``,
            of which each iteration takes ``config.prompts`` prompts.
    """
    from steps.online.online_run import Folders, run_replay

    folders = Folders(policy.path, start and start.path, reference and reference.path)
    with at_work(out) as place:
        metrics = run_replay(folders, config, rollouts.path, place)
        of_model = replace(place, output=place.output / "model")
        return with_template_of(rollouts, of_model, metrics)
