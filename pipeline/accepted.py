"""Which states of a step's code count as equal: what people accepted, and what follows from that.

A *state* is what stands for the code in a recipe, ``made_by``. Each acceptance names two of them
(:meth:`pipeline.store.Store.accept`) and holds in both directions and by way of others: where a
equals b and b equals c, a equals c.
"""

from collections.abc import Sequence

from pipeline.canonical import Json


def equal_states(made_by: Json, pairs: Sequence[tuple[Json, Json]]) -> list[Json]:
    """A state, then every state that is accepted as equal to it, the most direct ones first."""
    equal = [made_by]
    for known in equal:  # which grows meanwhile
        for one, other in pairs:
            linked = other if one == known else one if other == known else None
            if linked is not None and linked not in equal:
                equal.append(linked)
    return equal
