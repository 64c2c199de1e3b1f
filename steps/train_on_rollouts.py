"""``train_on_rollouts``: train a policy on completions that exist already."""

from dataclasses import replace

from pipeline import Metrics, Output, step
from steps.core_adapters.own_tokens import with_template_of
from steps.core_adapters.workplace_of import at_work
from steps.kinds import Judged, Model, OnlineState, OnlineTraining
from steps.online.config import RlConfig


@step(
    makes=OnlineTraining,
    estimate="steps.step_needs:of_model",
    refuses="steps.train_on_rollouts:refuse_other_distribution",
    rests_on="steps.core_adapters.workplace_of:base_of_adapters",
)
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
    with at_work(out, policy) as place:
        metrics = run_replay(folders, config, rollouts.path, place)
        of_model = replace(place, output=place.output / "model")
        return with_template_of(rollouts, of_model, metrics)


def refuse_other_distribution(rollouts: object, config: RlConfig = RlConfig(), **_: object) -> None:
    """Refuse, when a plan is made, rollouts that are not to be sampled from the policy's own
    distribution, if the method weighs tokens by it. It takes the arguments of
    ``train_on_rollouts``.

    Raises:
        ValueError: the temperature, ``top_p``, ``top_k`` or ``min_p`` change the distribution.
    """
    from pipeline.dag.step import as_input
    from steps.generation.config import SamplingConfig, require_whole

    made = as_input(rollouts) if config.method.weighs_by_policy else None
    while made is not None:  # through what judges them, up to what samples them
        sampling = made.step.arguments.get("config")
        if isinstance(sampling, SamplingConfig):
            require_whole(vars(sampling), f"the config of {made.step.name}")
        made = as_input(made.step.arguments.get("rollouts"))
