"""``train_kto``: training on responses labelled good or bad, against cached reference logps."""

from collections import Counter
from collections.abc import Iterable

from pipeline import Metrics, Output, step
from steps.core_adapters.held_out_rows import with_reference
from steps.core_adapters.own_tokens import tokens_for, with_template_of
from steps.core_adapters.workplace_of import at_work
from steps.data.rows.parquet import iter_rows
from steps.kinds import Model, ReferenceLogps, UnpairedTokens
from steps.losses.base import UnpairedLoss, WeightedUnpairedLoss
from steps.shared.execution_detail import execution_detail
from steps.training.config import KtoConfig


@step(
    makes=Model,
    estimate="steps.step_needs:of_model",
    rests_on="steps.core_adapters.workplace_of:base_of_adapters",
)
def train_kto(
    out: Output,
    tokens: UnpairedTokens,
    policy: Model,
    reference: ReferenceLogps,
    config: KtoConfig = KtoConfig(),
    held_out: UnpairedTokens | None = None,
    held_out_reference: ReferenceLogps | None = None,
) -> Metrics:
    """Write a model folder, ``metrics.jsonl`` and ``summary.md``. An interrupted step resumes from
    its last checkpoint.

    The arguments mean the same as in :func:`steps.train_dpo.train_dpo`. A notice tells if the
    weights do not balance the numbers of good and bad responses.
    """
    from steps.training.recipes import run_kto

    with at_work(out, policy) as place:
        metrics = run_kto(
            policy.path,
            iter_rows(tokens_for(policy, tokens)),
            reference.path,
            config,
            place,
            with_reference(policy, held_out, held_out_reference),
        )
        metrics = with_template_of(tokens, place, metrics)
    labels = (record["label"] for record in iter_rows(tokens.path, ["label"]))
    notices = [*metrics.get("notices", ()), *unbalanced(config.loss, labels)]
    return {**metrics, **({"notices": notices} if notices else {})}


@execution_detail
def unbalanced(loss: UnpairedLoss, labels: Iterable[bool]) -> list[str]:
    """A notice if good responses, their number times their weight, do not count 1 to 4/3 times as
    much as bad ones; see :class:`steps.losses.kto.Kto`."""
    if not isinstance(loss, WeightedUnpairedLoss):
        return []
    numbers = Counter(labels)
    good, bad = numbers[True], numbers[False]
    if not good or not bad:
        kind, missing = ("good", "avoid") if good else ("bad", "write")
        return [
            f"all {good + bad} responses are {kind}, so nothing shows the model what to {missing}"
        ]
    of_good, of_bad = good * loss.desirable_weight, bad * loss.undesirable_weight
    if not of_good or not of_bad or 0.95 <= of_good / of_bad <= 1.4:  # a weight of 0 is meant
        return []
    if of_good < of_bad:
        name, low, high = "desirable_weight", of_bad / good, of_bad / good * 4 / 3
    else:
        name, low, high = "undesirable_weight", of_good / bad * 3 / 4, of_good / bad
    return [
        f"of {good} good and {bad} bad responses the good ones count {of_good / of_bad:.2g} times "
        f"as much as the bad ones, and the paper of KTO recommends 1 to 1.33 times: set {name} to "
        f"{low:.3g} to {high:.3g}"
    ]
