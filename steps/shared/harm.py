"""Notices where training has harmed a model, whatever its own metrics say."""

from steps.shared.execution_detail import execution_detail

FAR = 1.0
"""Nats a token. Models of `experiments/dpo_arithmetic.py` whose answers stayed right were at most
0.3 from the model before; at 0.9, exact match had gone from 0.68 to 0.47, at 4.5 to 0.06."""


@execution_detail
def stopped_ending(before: float, after: float, count: int, start: str) -> list[str]:
    """A notice where answers stopped ending.

    Args:
        before, after: the share of answers that ended before the limit, at `start` and now.
        count: of how many prompts each of the two shares is.
    """
    share = (before + after) / 2
    noise = (2 * share * (1 - share) / count) ** 0.5
    if after >= before / 2 or before - after <= 2 * noise:
        return []
    return [
        f"answers stopped ending: {before:.0%} ended before the limit with the {start}, "
        f"{after:.0%} with this model; look at them"
    ]


@execution_detail
def far_from(apart: float | None, start: str) -> list[str]:
    """A notice where a model is far from `start`: `apart` is the KL divergence on its own samples,
    in nats a token."""
    if apart is None or apart <= FAR:
        return []
    return [
        f"the model is {apart:.2f} nats a token from the {start}, on its own samples; beyond "
        f"{FAR:g} it has often lost what that could do: look at its answers"
    ]
