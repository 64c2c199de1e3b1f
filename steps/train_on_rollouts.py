"""``train_on_rollouts``: a policy learns from completions that were drawn before."""

from pipeline import Metrics, Output, step
from steps.glue.workplace_of import at_work
from steps.kinds import Judged, Model, OnlineState, OnlineTraining
from steps.online.config import RlConfig


@step(makes=OnlineTraining)
def train_on_rollouts(
    out: Output,
    rollouts: Judged,
    policy: Model,
    config: RlConfig = RlConfig(),
    start: OnlineState | None = None,
    reference: Model | None = None,
) -> Metrics:
    """Write the trained ``model`` and the ``state``, as ``train_online`` does, without sampling.

    On ``run["rollouts"]`` and the arguments of that run it ends with that run's weights, to the
    bit. With others it trains on what another policy drew: ``mismatch/k3`` says how far that has
    become, and ``method.off_policy`` weighs for it.

    Args:
        rollouts: the iterations of a run; or what ``sample_rollouts`` and ``judge`` made, which is
            taken ``config.prompts`` prompts at a time.
    """
    from steps.online.online_run import Folders, run_replay

    folders = Folders(policy.path, start and start.path, reference and reference.path)
    with at_work(out) as place:
        return run_replay(folders, config, rollouts.path, place)
