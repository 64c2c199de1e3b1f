"""``judge``: give existing rollouts verdicts and rewards, without sampling them again."""

from pipeline import Metrics, Output, step
from steps.checking.boxed import Boxed
from steps.checking.config import JudgeConfig
from steps.checking.verdicts import Checker
from steps.kinds import Judged, Rollouts


@step(makes=Judged)
def judge(
    out: Output, rollouts: Rollouts, checker: Checker = Boxed(), config: JudgeConfig = JudgeConfig()
) -> Metrics:
    """Write the rollouts with the checker's ``verdict`` (right, wrong or none), its ``reason``, and
    a reward under the checker's name: 1 for right, 0 for wrong, none without a verdict.

    Where prompts have several completions, the interval of ``right_share`` resamples prompts, and
    ``pass_at_K`` tells how likely one of K completions is right. A completion without a verdict
    counts as not right. Answers of data (``train_online(demonstrations=…)``) stay as they are.

    The verdicts replace those of an earlier checker, whose rewards stay if it has another name; if
    not, a notice says that they were replaced. The checker judges each
    completion in a separate process, which is killed after ``config.time_limit`` seconds.

    Raises:
        ValueError: more completions than ``config.most_without`` have no verdict.
    """
    from steps.evaluation.several_samples import pass_at_k, share_of_samples
    from steps.online.rewarding.judging import count_verdicts, judge_recording, right_of_prompts

    judged, notices = judge_recording(
        rollouts.path, checker, config, out.path, out.progress, out.scratch / "verdicts"
    )
    right = right_of_prompts(judged)
    shares = {"right_share": share_of_samples(right), **pass_at_k(right)}
    return {**shares, **count_verdicts(judged), **({"notices": notices} if notices else {})}
