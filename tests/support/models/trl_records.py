"""The pairs of the twenty steps that were recorded from TRL."""

from benchmarks import trl_steps
from steps.training import schedule


def records() -> list[dict]:
    """The pairs, placed so that the first epoch's shuffle puts them in the recorded order."""
    pairs = trl_steps.pairs()
    placed: list[dict] = [{}] * len(pairs)
    order = [
        i
        for step in range(trl_steps.STEPS)
        for i in schedule.batch_indices(len(pairs), trl_steps.BATCH_SIZE, step, seed=0)
    ]
    for number, (place, (prompt, chosen, rejected)) in enumerate(zip(order, pairs, strict=True)):
        placed[place] = {
            "row": f"pair {number}",
            "pair_id": f"pair {number}",
            "prompt_ids": prompt,
            "chosen_ids": chosen,
            "rejected_ids": rejected,
        }
    return placed
