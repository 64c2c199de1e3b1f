"""The engine of this process: what a completion is does not depend on what is written beside it."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from families import EVERY, UNLIKE, built
from tiny_models import VOCABULARY, llama, model_folder
from torch import Tensor
from transformers import MambaConfig, MambaForCausalLM, PreTrainedModel

from benchmarks.architectures import tiny
from steps.generation.alone import AloneEngine
from steps.generation.cache import BLOCK, SLOTS
from steps.generation.choosing import choose_engine, own_logps
from steps.generation.engine import Finished, Request, StaleWeightsError
from steps.generation.slots import SlotEngine
from steps.models.folders import load_model
from steps.scoring.attention import use_packed_attention
from steps.scoring.scored_by import model_digest

STOP = 2
NEW = 20  # with most prompts, more than a block of keys

Drawn = dict[tuple[str, int], Finished]


def some_requests(count: int = 6, completions: int = 2, temperature: float = 1.0) -> list[Request]:
    draw = random.Random(0)
    prompts = [
        tuple(draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 30))) for _ in range(count)
    ]
    return [
        Request(f"row {number}", k, ids, NEW, temperature, (STOP,))
        for number, ids in enumerate(prompts)
        for k in range(completions)
    ]


def draw(
    model: PreTrainedModel, requests: Iterable[Request], slots: int = 64, tokens: int = 2048
) -> Drawn:
    engine = SlotEngine(model, "w", slots, tokens)
    return {(done.row, done.k): done for done in engine.sample(requests, "w")}


@torch.no_grad()
def likeliest(model: PreTrainedModel, request: Request, ids: Sequence[int]) -> Sequence[Tensor]:
    """At every token of a completion, the best log-probability and its token, without a cache."""
    sequence = torch.tensor([[*request.prompt_ids, *ids[:-1]]])
    logits = model(input_ids=sequence).logits[0, len(request.prompt_ids) - 1 :]
    return logits.double().log_softmax(dim=-1).max(dim=-1)


@pytest.mark.parametrize("family", EVERY)
def test_greedy_with_a_cache_is_the_full_recompute_token_for_token(family: str) -> None:
    model = built(family)
    requests = some_requests(3, completions=1, temperature=0)
    drawn = draw(model, requests, slots=2)
    for request in requests:
        done = drawn[request.row, 0]
        logps, ids = likeliest(model, request, done.ids)
        assert done.ids == tuple(ids.tolist())
        assert done.logps == pytest.approx(logps.tolist(), abs=2e-5)
        assert len(ids) == NEW or done.ids[-1] == STOP
        assert STOP not in done.ids[:-1]


@pytest.mark.parametrize("family", UNLIKE)
def test_a_completion_is_the_same_to_the_bit_in_any_slots_order_and_company(family: str) -> None:
    model = built(family)
    requests = some_requests(4)
    drawn = draw(model, requests)
    assert len({done.ids for done in drawn.values()}) > len(drawn) / 2
    assert draw(model, requests, slots=3, tokens=1) == drawn
    shuffled = random.Random(1).sample(requests, len(requests))
    assert draw(model, shuffled, slots=7, tokens=40) == drawn
    alone = requests[0]
    assert draw(model, [alone], slots=1) == {(alone.row, alone.k): drawn[alone.row, alone.k]}


CUTS: list[dict[str, float]] = [
    {},
    {"top_p": 0.7},
    {"top_k": 4},
    {"min_p": 0.2},
    {"top_p": 0.9, "top_k": 12, "min_p": 0.01},
]


def cut_requests() -> list[Request]:
    """Every other setting; completions of a row have their own."""
    cuts = CUTS * 4
    return [
        replace(request, temperature=0.8, **cuts[number])  # pyright: ignore[reportArgumentType]
        for number, request in enumerate(some_requests(7))
    ]


def test_tokens_left_out_for_one_completion_do_not_matter_to_another() -> None:
    model, requests = built("llama"), cut_requests()
    drawn = draw(model, requests)
    assert draw(model, requests, slots=3, tokens=1) == drawn
    shuffled = random.Random(1).sample(requests, len(requests))
    assert draw(model, shuffled, slots=5, tokens=40) == drawn
    for request in requests:
        place = (request.row, request.k)
        assert draw(model, [request], slots=1)[place] == drawn[place]
    whole = draw(model, [replace(r, top_p=1.0, top_k=0, min_p=0.0) for r in requests])
    for request in requests:
        place = (request.row, request.k)
        assert (drawn[place] == whole[place]) != request.is_truncated


def test_logps_are_those_of_the_distribution_without_what_is_left_out() -> None:
    model = built("llama")
    request = Request("row", 0, (5, 6, 7), NEW, temperature=0.5, top_k=3)
    done = draw(model, [request])["row", 0]
    with torch.no_grad():
        sequence = torch.tensor([[*request.prompt_ids, *done.ids]])
        logits = model(input_ids=sequence).logits[0, 2:-1].double() / 0.5
    least = logits.topk(3).values[:, -1:]
    expected = logits.masked_fill(logits < least, -torch.inf).log_softmax(dim=-1)
    ids = torch.tensor(done.ids)[:, None]
    assert done.logps == pytest.approx(expected.gather(1, ids)[:, 0].tolist(), abs=1e-4)
    assert own_logps(model, request, done).tolist() == pytest.approx(
        logits.log_softmax(dim=-1).gather(1, ids)[:, 0].tolist(), abs=1e-4
    )


def test_lengths_of_others_do_not_matter_over_many_blocks_of_keys() -> None:
    model = built("qwen3")
    ids = tuple(number % VOCABULARY for number in range(9 * BLOCK))
    short = Request("short", 0, ids[:5], 8)
    long = [Request(f"long {n}", 0, ids[: n * BLOCK + 3], 20) for n in (1, 4, 8)]
    beside = draw(model, [short, *long], slots=16)
    assert beside["short", 0] == draw(model, [short])["short", 0]
    for request in long:
        assert beside[request.row, 0] == draw(model, [request])[request.row, 0]


def test_completions_of_a_row_are_told_apart_by_number_and_rows_by_id_and_runs_by_seed() -> None:
    model = built("llama")
    request = Request("row", 0, (5, 6), NEW)
    others = [
        replace(request, k=1),
        replace(request, row="other"),
        replace(request, seed=(1,)),
        replace(request, seed=(0, 1)),
    ]
    ids = {next(iter(draw(model, [one]).values())).ids for one in (request, *others)}
    assert len(ids) == 5


def test_logps_are_those_of_the_distribution_at_the_temperature() -> None:
    model = built("llama")
    request = Request("row", 0, (5, 6, 7), NEW, temperature=0.5)
    done = draw(model, [request])["row", 0]
    with torch.no_grad():
        sequence = torch.tensor([[*request.prompt_ids, *done.ids]])
        logits = model(input_ids=sequence).logits[0, 2:-1].double() / 0.5
    expected = logits.log_softmax(dim=-1).gather(1, torch.tensor(done.ids)[:, None])[:, 0]
    assert done.logps == pytest.approx(expected.tolist(), abs=1e-4)


def test_a_model_is_left_as_it_was_and_is_the_engine_s_until_the_last_completion() -> None:
    model = built("llama").train()
    use_packed_attention(model)
    before = model.config._attn_implementation
    sampling = SlotEngine(model, "w", slots=2).sample(some_requests(), "w")
    next(sampling)
    assert model.config._attn_implementation == SLOTS
    with pytest.raises(ValueError, match="called without a turn"):
        model(input_ids=torch.tensor([[1, 2]]))
    sampling.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert model.config._attn_implementation == before
    assert model.training
    assert torch.is_grad_enabled()


def test_logits_that_are_not_numbers_are_an_error_that_names_the_row() -> None:
    model = built("llama")
    with torch.no_grad():
        model.get_parameter("model.norm.weight").fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="row 'row 0'"):
        draw(model, some_requests(1))


# --- weights --------------------------------------------------------------------------------------


def test_new_weights_are_used_at_once_for_a_prompt_that_was_seen_before(tmp_path: Path) -> None:
    model, folder = load_model(model_folder(tmp_path / "a")), model_folder(tmp_path / "b", seed=1)
    engine = SlotEngine(model, "first")
    requests = some_requests(4)
    first = list(engine.sample(requests, "first"))
    digest = model_digest(folder)

    engine.update_weights(folder, digest)

    fresh = SlotEngine(load_model(folder), digest)
    assert list(engine.sample(requests, digest)) == list(fresh.sample(requests, digest))
    assert {done.weights for done in first} == {"first"}
    with pytest.raises(StaleWeightsError, match="'first' are asked for"):
        next(engine.sample(requests, "first"))


def test_weights_replaced_while_completions_are_drawn_are_an_error() -> None:
    model = llama()
    engine = SlotEngine(model, "old", slots=2)
    sampling = engine.sample(some_requests(), "old")
    next(sampling)
    engine.update_weights({n: t.clone() for n, t in model.state_dict().items()}, "new")
    with pytest.raises(StaleWeightsError, match="replaced while sampling"):
        list(sampling)


def damage_shape(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"] = torch.ones(3)


def damage_names(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.bias"] = torch.ones(3)


def leave_one_out(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.layers.1.mlp.up_proj.weight"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_shape, r"the shape of model.norm.weight is \(3,\)"),
        (damage_names, "has no weight model.norm.bias"),
        (leave_one_out, "lack model.layers.1.mlp.up_proj.weight"),
    ],
)
def test_weights_of_which_one_is_wrong_leave_all_as_they_were(damage: object, message: str) -> None:
    model = llama(tied=False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tensors = {name: torch.zeros_like(tensor) for name, tensor in before.items()}
    assert callable(damage)
    damage(tensors)
    engine = SlotEngine(model, "old")
    with pytest.raises(ValueError, match=message):
        engine.update_weights(tensors, "new")
    assert engine.weights == "old"
    assert all(torch.equal(tensor, before[n]) for n, tensor in model.state_dict().items())


def test_a_tied_head_follows_the_embeddings_and_an_untied_one_must_be_given() -> None:
    for tied in (True, False):
        model = llama(tied=tied)
        tensors = {name: torch.zeros_like(t) for name, t in model.state_dict().items()}
        del tensors["lm_head.weight"]
        engine = SlotEngine(model, "old")
        if tied:
            engine.update_weights(tensors, "new")
            assert not model.get_output_embeddings().weight.any()  # pyright: ignore
        else:
            with pytest.raises(ValueError, match=r"lack lm_head\.weight"):
                engine.update_weights(tensors, "new")


def test_a_folder_that_is_not_its_digest_is_refused(tmp_path: Path) -> None:
    engine = SlotEngine(llama(), "old")
    with pytest.raises(ValueError, match=r"holds the weights .* not 0123"):
        engine.update_weights(model_folder(tmp_path), "0123")


# --- choosing -------------------------------------------------------------------------------------


def test_a_model_that_takes_slots_gets_them_and_no_completion_depends_on_its_neighbours() -> None:
    choice = choose_engine(built("gemma2"), some_requests())
    assert (choice.name, choice.batch_invariant, choice.notice) == ("slots", True, None)


def mamba() -> PreTrainedModel:
    config = MambaConfig(
        vocab_size=VOCABULARY, hidden_size=16, state_size=4, num_hidden_layers=2, pad_token_id=0
    )
    return MambaForCausalLM(config).eval()


def test_a_model_that_takes_none_writes_alone_and_draws_by_the_same_rule() -> None:
    """A Llama that is forced to write alone draws what it draws in slots."""
    requests = some_requests(3, 2)
    choice = choose_engine(mamba(), requests, "w")
    assert choice.name == "alone"
    assert "Mamba" in (choice.notice or "")
    done = list(choice.engine.sample(requests, "w"))
    assert [(d.row, d.k) for d in done] == [(r.row, r.k) for r in requests]
    assert list(choice.engine.sample(requests[3:4], "w")) == done[3:4]

    model = built("llama")
    for asked in (requests, cut_requests()[1:5]):
        alone = {(d.row, d.k): d for d in AloneEngine(model, "w").sample(asked, "w")}
        in_slots = draw(model, asked)
        assert {p: d.ids for p, d in alone.items()} == {p: d.ids for p, d in in_slots.items()}
        for place, one in alone.items():
            assert one.logps == pytest.approx(in_slots[place].logps, abs=2e-5)
            assert one.finish is in_slots[place].finish


def test_alone_too_a_completion_does_not_depend_on_longer_ones_before_it() -> None:
    """A "dynamic" rotation keeps the angles of the longest sequence."""
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    model = tiny("llama", rope_parameters=rope, max_position_embeddings=8)
    short, long = (Request(f"{n}", 0, tuple(range(3, 3 + n)), 6, 0.0) for n in (9, 60))
    found = [done.logps for done in AloneEngine(model, "w").sample((short, long, short), "w")]
    assert found[0] == found[2]


def test_slots_that_give_something_else_than_the_model_are_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forgetful(self: object, prompt: object, slots: Sequence[int]) -> None:
        put(self, torch.zeros_like(prompt), slots)  # pyright: ignore

    from steps.generation.cache import KeyValueCache

    put = KeyValueCache.put
    monkeypatch.setattr(KeyValueCache, "put", forgetful)
    choice = choose_engine(built("llama"), some_requests())
    assert choice.name == "alone"
    assert "logps are off by" in (choice.why_not or "")


@pytest.mark.parametrize(
    ("architecture", "told"),
    [
        ("minimax", "with transformers' cache, MiniMaxForCausalLM differs"),
        ("xlstm", "xLSTMForCausalLM does not write with transformers' cache"),
    ],
)
def test_a_cache_of_transformers_that_is_not_right_is_not_used(
    architecture: str, told: str
) -> None:
    """That of MiniMax with a window forgets what the model reads; that of xLSTM raises an error."""
    model, request = tiny(architecture).float(), some_requests()[0]
    choice = choose_engine(model, [request])
    assert choice.name == "alone"
    assert told in (choice.notice or "")
    [done] = choice.engine.sample([request], "")
    torch.testing.assert_close(
        torch.tensor(done.logps, dtype=torch.float64),
        own_logps(model, request, done),
        rtol=0,
        atol=1e-4,
    )


@pytest.mark.parametrize(
    ("architecture", "settings", "engine"),
    [
        ("phimoe", {"sliding_window": 30}, "slots"),  # whose layers hand no window over
        ("llama4_text", {"attention_chunk_size": 30}, "slots"),
        ("minimax", {"sliding_window": 30}, "alone"),  # whose cache is right up to the window
        ("recurrent_gemma", {}, "alone"),  # its cache reads a prompt of one token as the next one
        ("roberta", {"is_decoder": True}, "alone"),  # to which `generate` gives other positions
    ],
)
def test_completions_are_the_models_own_beyond_what_is_tried(
    architecture: str, settings: dict[str, Any], engine: str
) -> None:
    """A window that is longer than all prompts, and the tokens tried behind them, is exceeded."""
    model = tiny(architecture, **settings).float()
    asked = {"long": ((5, 6, 7, 8), 40), "short": ((9,), 36), "brief": ((5, 6, 7), 8)}
    requests = [Request(row, 0, ids, most) for row, (ids, most) in asked.items()]
    choice = choose_engine(model, requests)
    assert choice.name == engine
    for done in list(choice.engine.sample(requests, "")):
        [request] = [one for one in requests if one.row == done.row]
        own = own_logps(model, request, done)
        assert done.logps == pytest.approx(own.tolist(), abs=1e-3)


@pytest.mark.parametrize("architecture", ["gpt2", "gpt_neo"])  # the second one has a window of 12
def test_a_completion_up_to_a_models_last_position_is_compared(architecture: str) -> None:
    model = tiny(architecture, max_position_embeddings=40).float()
    request = Request("long", 0, (5, 6, 7), 38)
    choice = choose_engine(model, [request])
    assert "all is read again" not in (choice.notice or "")
    [done] = choice.engine.sample([request], "")
    own = own_logps(model, request, done)
    assert done.logps == pytest.approx(own.tolist(), abs=1e-3)
