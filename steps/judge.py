"""``judge``: verdicts and rewards for rollouts, without sampling them again."""

from pipeline import Metrics, Output, step
from steps.checking.boxed import Boxed
from steps.checking.config import JudgeConfig
from steps.checking.verdicts import Checker
from steps.kinds import Judged, Rollouts


@step(makes=Judged)
def judge(
    out: Output,
    rollouts: Rollouts,
    checker: Checker = Boxed(),
    config: JudgeConfig = JudgeConfig(),
) -> Metrics:
    """Write the rollouts with the checker's ``verdict`` (right, wrong or none), the ``reason``, and
    a reward by the checker's name: 1, 0, or none where there is no verdict.

    Verdicts of an earlier checker are replaced, and its rewards are kept. Each completion is judged
    in a process that can be killed, within ``config.time_limit`` seconds.

    Raises:
        ValueError: more completions than ``config.most_without`` have no verdict.
    """
    from steps.evaluation.intervals import proportion
    from steps.online.judging import count_verdicts, judge_recording

    judged = judge_recording(
        rollouts.path, checker, config, out.path, out.progress, out.scratch / "verdicts"
    )
    counts = count_verdicts(judged)
    return {"right_share": proportion(counts["right"], len(judged)), **counts}
