"""``train_online``: train a policy on completions that it samples itself."""

from collections.abc import Mapping

from pipeline import Metrics, Output, TemperError, step
from steps.checking.boxed import Boxed
from steps.checking.config import JudgeConfig
from steps.checking.verdicts import Checker
from steps.core_adapters.own_tokens import demonstrations_for
from steps.core_adapters.workplace_of import at_work
from steps.environments.environment import Environment
from steps.generation.engine_config import EngineConfig, OwnEngine
from steps.kinds import ConversationTokens, Model, OnlineRun, OnlineState, PairTokens, Prompts
from steps.online.config import RlConfig


@step(
    makes=OnlineRun,
    estimate="steps.step_needs:of_model",
    added={"teacher": None, "demonstrations": None},
    rests_on="steps.core_adapters.workplace_of:base_of_adapters",
)
def train_online(
    out: Output,
    prompts: Prompts,
    policy: Model,
    iterations: int,
    checker: Checker | None = Boxed(),
    config: RlConfig = RlConfig(),
    judging: JudgeConfig = JudgeConfig(),
    start: OnlineState | None = None,
    reference: Model | None = None,
    engine: EngineConfig = OwnEngine(),
    environment: Environment | None = None,
    teacher: Model | Mapping[str, Model] | None = None,
    demonstrations: PairTokens | ConversationTokens | None = None,
) -> Metrics:
    """Write the trained ``model``, the ``state`` from which another segment can continue, the
    sampled ``rollouts`` with verdicts, and ``metrics.jsonl`` with one line per iteration.

    An interrupted step resumes from checkpoints and finished completions in scratch. If a
    completion does not depend on the others in its batch (``rollouts/engine.json`` records this),
    the arguments alone determine the weights.

    Args:
        iterations: of this segment. Two segments, the second with the state of the first as its
            ``start``, are one run of as many as both.
        start: ``run["state"]`` of another segment; its weights take the place of the policy's.
        reference: what methods with a reference compare with; the policy, without.
        engine: who draws: this process, or engines elsewhere.
        environment: replies to the policy's turns, as ``judging`` says for verdicts. What it leaves
            open, the checker judges by the last turn.
        checker: gives completions their rewards; None, if the method uses none.
        teacher: what ``Distill`` learns from, with the vocabulary of the policy. What it says is
            kept beside the rollouts, so ``train_on_rollouts`` needs it no more. Of several by name,
            the one that a row's column ``teacher`` names teaches its completions.
        demonstrations: from which ``Distill(on_policy=…)`` below 1 learns in some iterations.
    """
    from steps.data.rows.parquet import read_rows
    from steps.data.rows.tables import TEACHER
    from steps.distillation.online_teacher import Teachers
    from steps.environments.playing import replying
    from steps.online.online_run import Folders, run_sampling
    from steps.online.rewarding.rewards import checking, unrewarded

    taught = None
    if isinstance(teacher, Mapping):
        of_row = {row["row"]: row.get(TEACHER) for row in read_rows(prompts.path)}
        taught = Teachers({name: model.path for name, model in teacher.items()}, of_row)
    elif teacher is not None:
        taught = Teachers({"": teacher.path})
    folders = Folders(policy.path, start and start.path, reference and reference.path, taught)
    if checker is None and environment is None and config.method.uses_rewards:
        raise TemperError(
            f"the method {config.method.name} learns from rewards here, and nothing gives any; "
            "give a checker"
        )
    if bool(config.method.of_data) != (demonstrations is not None) or (
        demonstrations is not None and isinstance(teacher, Mapping)
    ):
        raise TemperError(
            "demonstrations belong to Distill with on_policy below 1 and one teacher; give both "
            "or neither"
        )
    alone = None if environment else prompts.path
    with (
        at_work(out, policy) as place,
        checking(checker, judging, out.scratch, alone) if checker else unrewarded() as reward,
        replying(environment, judging) as replies,
    ):
        answers = () if demonstrations is None else demonstrations_for(policy, demonstrations)
        return run_sampling(
            folders, config, prompts.path, reward, iterations, place, engine, replies, answers
        )
