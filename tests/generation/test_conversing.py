"""Completions of several turns: what is drawn behind a reply depends on nothing but what is before
it, whoever writes beside it and whenever replies come."""

import random
from collections.abc import Sequence

import pytest
import torch
from families import built
from tiny_models import VOCABULARY
from transformers import PreTrainedModel

from steps.generation.alone import AloneEngine
from steps.generation.cache import BLOCK
from steps.generation.engine import Ended, Finish, Finished, Place, Replies, Reply, Request
from steps.generation.slots import SlotEngine

STOPS = tuple(range(2, 12))
"""So many that turns are short."""
NEW = BLOCK + 12
"""Tokens of a completion: more than a block of keys."""


class Tool:
    """Replies with tokens that follow from the turn, of any number and with a stop token among
    them, and ends a completion after a few turns. With `seed`, replies come late and in any
    order."""

    def __init__(self, most: int = 4, seed: int | None = None) -> None:
        self.most = most
        self.late = None if seed is None else random.Random(seed)
        self.due: list[tuple[Place, Reply]] = []
        self.most_due = 0

    def ask(self, ended: Ended) -> None:
        self.due.append((ended.place, self.reply(ended.ids, ended.scored)))
        self.most_due = max(self.most_due, len(self.due))

    def reply(self, ids: Sequence[int], scored: Sequence[bool]) -> Reply:
        turns = sum(a and not b for a, b in zip(scored, [*scored[1:], False], strict=True))
        if turns == self.most:
            return Finish.error if ids[-1] % 2 else Finish.stop
        length = 1 + sum(ids) % 7
        said = ((ids[-1] + 5 * n) % VOCABULARY for n in range(1, length))
        return (*said, STOPS[0])

    def given(self, wait: bool) -> Sequence[tuple[Place, Reply]]:
        if self.late:
            self.late.shuffle(self.due)
        count = len(self.due) if self.late is None else self.late.randrange(len(self.due) + 1)
        taken = [self.due.pop() for _ in range(max(count, int(wait)))]
        return taken


def some_requests(
    temperature: float = 1.0, completions: int = 3, top_p: float = 1.0
) -> list[Request]:
    draws = random.Random(0)
    prompts = [
        tuple(draws.randrange(VOCABULARY) for _ in range(draws.randint(1, 17))) for _ in range(6)
    ]
    return [
        Request(f"row {n}", k, ids, NEW, temperature, STOPS, top_p=top_p if k else 1.0)
        for n, ids in enumerate(prompts)
        for k in range(completions)
    ]


def converse(
    model: PreTrainedModel, requests: Sequence[Request], slots: int, tool: Replies
) -> dict[Place, Finished]:
    engine = SlotEngine(model, "w", slots, 40)
    return {(done.row, done.k): done for done in engine.converse(requests, "w", tool)}


@torch.no_grad()
def by_full_recompute(
    model: PreTrainedModel, request: Request, drawn: Sequence[int]
) -> tuple[list[int], list[bool]]:
    """Greedy, every token from a forward over all that were drawn before it."""
    ids: list[int] = []
    scored: list[bool] = []
    tool = Tool()
    sequence = torch.tensor([[*request.prompt_ids, *drawn]])
    likeliest = model(input_ids=sequence).logits[0, len(request.prompt_ids) - 1 :].argmax(dim=-1)
    while len(ids) < min(NEW, len(likeliest)):
        ids.append(int(likeliest[len(ids)]))
        scored.append(True)
        if ids[-1] in STOPS:
            reply = tool.reply(ids, scored)
            if isinstance(reply, Finish) or len(ids) + len(reply) >= NEW:
                break
            ids += reply
            scored += [False] * len(reply)
    return ids, scored


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_greedy_turns_are_the_full_recompute_token_for_token(family: str) -> None:
    model = built(family)
    requests = some_requests(temperature=0, completions=1)
    drawn = converse(model, requests, 3, Tool())
    for request in requests:
        done = drawn[request.row, 0]
        ids, scored = by_full_recompute(model, request, done.ids)
        assert (list(done.ids), list(done.scored or [True] * len(ids))) == (ids, scored)


@pytest.mark.parametrize("family", ["llama", pytest.param("gemma2", marks=pytest.mark.attack)])
def test_an_episode_is_the_same_to_the_bit_in_any_slots_order_company_and_delay(
    family: str,
) -> None:
    model, requests = built(family), some_requests(completions=2, top_p=0.8)
    drawn = converse(model, requests, 64, Tool())
    assert {done.finish for done in drawn.values()} == set(Finish)
    assert sum(done.scored is not None for done in drawn.values()) > len(drawn) / 2
    for slots in (1, 5):
        shuffled = random.Random(slots).sample(requests, len(requests))
        assert converse(model, shuffled, slots, Tool(seed=slots)) == drawn
    for request in requests[::9]:
        place = request.row, request.k
        assert converse(model, [request], 1, Tool()) == {place: drawn[place]}


def test_an_engine_that_reads_everything_again_draws_the_same_turns() -> None:
    model, request = built("llama"), some_requests(top_p=0.8)[1]
    done = converse(model, [request], 1, Tool())[request.row, request.k]
    alone = AloneEngine(model, "w")
    (other,) = alone.converse([request], "w", Tool())
    assert (other.ids, other.scored, other.finish) == (done.ids, done.scored, done.finish)
    assert other.logps == pytest.approx(done.logps, abs=2e-5)


def test_what_is_not_drawn_has_no_logp_and_ends_nothing() -> None:
    drawn = converse(built("llama"), some_requests(), 8, Tool()).values()
    for done in drawn:
        scored = done.scored or (True,) * len(done.ids)
        assert all((logp == 0) != own for logp, own in zip(done.logps, scored, strict=True))
        assert scored[-1]
        assert (done.ids[-1] in STOPS) or done.finish is Finish.length
        assert len(done.ids) <= NEW
