"""``train_online``: train a policy on completions that it samples itself."""

from pipeline import Metrics, Output, step
from steps.checking.boxed import Boxed
from steps.checking.config import JudgeConfig
from steps.checking.verdicts import Checker
from steps.glue.workplace_of import at_work
from steps.kinds import Model, OnlineRun, OnlineState, Prompts
from steps.online.config import RlConfig


@step(makes=OnlineRun)
def train_online(
    out: Output,
    prompts: Prompts,
    policy: Model,
    iterations: int,
    checker: Checker = Boxed(),
    config: RlConfig = RlConfig(),
    judging: JudgeConfig = JudgeConfig(),
    start: OnlineState | None = None,
    reference: Model | None = None,
) -> Metrics:
    """Write the trained ``model``, the ``state`` from which another segment can continue, the
    sampled ``rollouts`` with verdicts, and ``metrics.jsonl`` with one line per iteration.

    An interrupted step resumes from checkpoints and finished completions in scratch. If a
    completion does not depend on the others in its batch (``rollouts/engine.json`` records this),
    the arguments alone determine the weights.

    Args:
        iterations: the iterations of this segment. Two segments give the same result as one run of
            their total length, if the second starts from the state of the first.
        start: ``run["state"]`` of another segment. Its weights replace those of ``policy``.
        reference: the reference model, for methods that use one; ``policy`` by default.
    """
    from steps.checking.judges import Judges
    from steps.online.online_run import Folders, run_sampling

    folders = Folders(policy.path, start and start.path, reference and reference.path)
    judges = Judges(checker, judging.processes, judging.time_limit)
    with at_work(out) as place, judges:
        return run_sampling(
            folders, config, prompts.path, judges, judging.most_without, iterations, place
        )
