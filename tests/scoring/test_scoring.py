"""Scoring a pack and learning from it, by whichever way a model allows: the same values each time.

That the values are right is shown in `test_engine_parity`.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import oracle
import pytest
import torch
from tiny_models import VOCABULARY, gemma2, gpt2, llama, model_folder
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from steps.models import activation_checkpointing
from steps.models.activation_checkpointing import checkpoint_activations
from steps.models.config import ActivationCheckpointing, Dtype
from steps.models.folders import load_model
from steps.scoring import logps as scoring
from steps.scoring.attention import use_packed_attention
from steps.scoring.examples import TokenGroup, TokenResponse
from steps.scoring.logps import (
    Scored,
    TokenLogps,
    differentiable_logps,
    forward_backward,
    sequence_logps,
    token_logps,
)
from steps.scoring.packing import Pack, make_pack
from steps.scoring.scorer import Scorer
from steps.training.config import OptimizerConfig
from steps.training.objectives import sft_objective
from steps.training.trainer import GroupLosses, Trainer


@pytest.fixture
def exactly() -> Iterator[None]:
    with oracle.in_float64():
        yield


def groups(count: int, responses: int = 2, vocabulary: int = VOCABULARY) -> list[TokenGroup]:
    draw = random.Random(count)

    def ids(longest: int) -> tuple[int, ...]:
        return tuple(draw.randrange(vocabulary) for _ in range(draw.randint(1, longest)))

    return [
        TokenGroup(
            f"row {i}", f"{i}", ids(20), tuple(TokenResponse(ids(30)) for _ in range(responses))
        )
        for i in range(count)
    ]


def load(folder: Path, build: Callable[[], PreTrainedModel], dtype: Dtype) -> PreTrainedModel:
    model = load_model(model_folder(folder, build), dtype).eval()
    use_packed_attention(model)
    return model


def loss(logps: TokenLogps, _: slice) -> tuple[Tensor, dict[str, Tensor]]:
    chosen, rejected = logps.sums().unbind(1)
    margins = chosen - rejected
    return -functional.logsigmoid(0.2 * margins) / 8, {"margins": margins.detach()}


def learn(model: PreTrainedModel, pack: Pack) -> tuple[Scored, dict[str, Tensor]]:
    model.zero_grad(set_to_none=True)
    scored = forward_backward(model, pack, loss)
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return scored, gradients


def assert_close(
    actual: tuple[Scored, dict[str, Tensor]], expected: tuple[Scored, dict[str, Tensor]]
) -> None:
    for name in ("losses", "logps"):
        mine, other = (getattr(scored, name) for scored, _ in (actual, expected))
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-10)
    assert actual[0].metrics.keys() == expected[0].metrics.keys()
    assert actual[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        torch.testing.assert_close(actual[1][name], gradient, rtol=0, atol=1e-8, msg=name)


# --- however much of the logits exists at a time -------------------------------------------------


@pytest.mark.usefixtures("exactly")
@pytest.mark.parametrize("build", [llama, gemma2, gpt2, lambda: llama(tied=False)])
def test_a_smaller_budget_for_logits_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Callable[[], PreTrainedModel]
) -> None:
    model = load(tmp_path, build, Dtype.float64)
    pack = make_pack(groups(9))
    expected = learn(model, pack)
    expected_logps = token_logps(model, pack)
    for rows in (1, 48, 90):
        monkeypatch.setitem(scoring._LOGITS_BYTES, "cpu", rows * VOCABULARY * 8)
        assert_close(learn(model, pack), expected)
        assert torch.equal(token_logps(model, pack), expected_logps)


# --- whatever the model is made of ---------------------------------------------------------------


def watched_head(model: Any) -> PreTrainedModel:
    model.get_output_embeddings().register_forward_hook(lambda *_: None)
    return model


def watched_embedding(model: Any) -> PreTrainedModel:
    model.get_input_embeddings().register_forward_hook(lambda *_: None)
    return model


def unpacked(model: PreTrainedModel) -> PreTrainedModel:
    model.set_attn_implementation("sdpa")
    return model


def checkpointed(model: PreTrainedModel) -> PreTrainedModel:
    checkpoint_activations(model)
    return model


@pytest.mark.usefixtures("exactly")
@pytest.mark.parametrize("change", [watched_head, watched_embedding, unpacked])
@pytest.mark.parametrize("build", [llama, gpt2, lambda: llama(tied=False)])
def test_every_way_gives_the_same(
    tmp_path: Path,
    build: Callable[[], PreTrainedModel],
    change: Callable[[PreTrainedModel], PreTrainedModel],
) -> None:
    pack = make_pack(groups(6))
    expected = learn(load(tmp_path, build, Dtype.float64), pack)
    assert len(expected[1]) > 5
    assert_close(learn(change(load(tmp_path, build, Dtype.float64)), pack), expected)


@pytest.mark.parametrize("change", [watched_head, checkpointed, lambda model: model])
def test_logps_with_a_graph_are_the_same_bits(
    tmp_path: Path, change: Callable[[PreTrainedModel], PreTrainedModel]
) -> None:
    model = change(load(tmp_path, llama, Dtype.float32))
    pack = make_pack(groups(6))
    with_graph = differentiable_logps(model, pack)
    assert with_graph.requires_grad
    assert torch.equal(with_graph, token_logps(model, pack))


def test_a_padding_token_in_the_text_keeps_its_embedding(tmp_path: Path) -> None:
    model: Any = load(tmp_path, lambda: llama(tied=False), Dtype.float32)
    model.get_input_embeddings().padding_idx = 7
    pack = make_pack(groups(9))
    assert 7 in pack.input_ids
    _, gradients = learn(model, pack)
    rows = gradients["model.embed_tokens.weight"].abs().sum(dim=1)
    assert rows[7] == 0
    assert (rows > 0).sum() > 40


# --- a loss that sees tokens ---------------------------------------------------------------------


def of_three(count: int) -> list[TokenGroup]:
    """Groups of one, two and three responses."""
    return [
        replace(g, responses=g.responses[: 1 + i % 3])
        for i, g in enumerate(groups(count, responses=3))
    ]


def weighted_tokens(logps: TokenLogps, _: slice) -> tuple[Tensor, dict[str, Tensor]]:
    """A loss in which every token counts for what its logp is, the one left out for nothing."""
    squares = replace(logps, tokens=logps.tokens.square() / 2)
    return squares.sums().sum(dim=1), {"responses": (logps.lengths > 0).sum(dim=1).double()}


@pytest.mark.usefixtures("exactly")
@pytest.mark.parametrize("budget", [None, 48 * VOCABULARY * 8])
def test_a_loss_of_tokens_and_of_groups_of_any_size_has_the_oracle_s_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: int | None
) -> None:
    examples = of_three(7)
    slow = oracle.load(model_folder(tmp_path, llama))
    values = [oracle.token_logps(slow, g.prompt_ids, r.ids) for g in examples for r in g.responses]
    textbook = torch.cat(values).square().sum() / 2
    expected = oracle.gradients(slow, textbook)
    if budget is not None:
        monkeypatch.setitem(scoring._LOGITS_BYTES, "cpu", budget)
    model = load(tmp_path, llama, Dtype.float64)
    model.zero_grad(set_to_none=True)
    scored = forward_backward(model, make_pack(examples), weighted_tokens)
    torch.testing.assert_close(scored.losses.sum(), textbook.detach(), rtol=1e-12, atol=0)
    assert scored.metrics["responses"].tolist() == [1, 2, 3, 1, 2, 3, 1]
    assert (scored.logps == 0).tolist() == [[k > i % 3 for k in range(3)] for i in range(7)]
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=0, atol=1e-8, msg=name)


def test_groups_of_any_size_are_scored_alike_in_one_pack_and_in_several(tmp_path: Path) -> None:
    examples, results = of_three(7), []

    class Loss:
        def __call__(self, logps: TokenLogps, members: Tensor) -> GroupLosses:
            assert logps.lengths.shape == (len(members), 3)
            return weighted_tokens(logps, slice(0))

        def to(self, device: torch.device) -> Self:
            return self

    for budget in (1, 10**6):
        model = load(tmp_path, llama, Dtype.float32)
        trainer = Trainer(Scorer(model, budget), OptimizerConfig())
        batch = trainer.prepare(examples)
        results.append(trainer.forward_backward(batch, Loss()).result())
        scored = trainer.logps(batch).result().of(examples)
        assert torch.equal(scored.sums(), results[-1].logps)
    one, other = results
    assert torch.equal(one.losses, other.losses)
    assert torch.equal(one.logps, other.logps)


# --- the same bits -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", list(Dtype))
def test_bits_do_not_depend_on_neighbours_or_gradients(dtype: Dtype) -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 96, "intermediate_size": 176, "num_hidden_layers": 2}
    heads: dict[str, Any] = {"num_attention_heads": 6, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=1003, **sizes, **heads)).eval()
    model.to(getattr(torch, dtype))
    use_packed_attention(model)
    examples = groups(12, vocabulary=1003)
    alone = {g.group_id: token_logps(model, make_pack([g])) for g in examples}
    draw = random.Random(1)
    for _ in range(8):
        chosen = draw.sample(examples, draw.randint(2, 6))
        pack = make_pack(chosen)
        together = token_logps(model, pack)
        assert torch.equal(together, torch.cat([alone[g.group_id] for g in chosen]))
        expected = sequence_logps(together, pack).view(-1, 2)
        assert torch.equal(forward_backward(model, pack, loss).logps, expected)


# --- modes ---------------------------------------------------------------------------------------


def test_scoring_ignores_dropout_and_leaves_every_mode_as_it_was(tmp_path: Path) -> None:
    model: Any = load(tmp_path, lambda: llama(dropout=0.5), Dtype.float32)
    pack = make_pack(groups(3))
    expected = token_logps(model, pack)
    model.train()
    dropped = {forward_backward(model, pack, loss).losses.sum().item() for _ in range(3)}
    assert len(dropped) == 3
    layers = list(model.modules())
    model.model.layers[0].eval()
    modes = [layer.training for layer in layers]
    assert torch.equal(token_logps(model, pack), expected)
    assert [layer.training for layer in layers] == modes
    assert len(set(modes)) == 2


@torch.no_grad()
def test_bfloat16_weights_are_scored_in_float32(tmp_path: Path) -> None:
    model: Any = load(tmp_path, llama, Dtype.bfloat16)
    pack = make_pack(groups(3))
    hidden = model.base_model(
        input_ids=pack.input_ids[None], position_ids=pack.position_ids[None], pack=pack
    ).last_hidden_state[0, pack.predictors]
    # Only the forward may round to bfloat16; the log-softmax of its logits may not.
    logits = model.get_output_embeddings()(hidden).double()
    expected = logits.log_softmax(-1)[torch.arange(len(logits)), pack.targets]
    actual = token_logps(model, pack)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=1e-5)


def test_layers_are_computed_again_in_evaluation_mode_too(tmp_path: Path) -> None:
    model: Any = load(tmp_path, llama, Dtype.float32)
    checkpoint_activations(model)
    calls: list[bool] = []
    model.base_model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(True))
    pack = make_pack(groups(2))
    token_logps(model, pack)
    assert len(calls) == 1
    learn(model, pack)
    assert len(calls) == 3


class Scaled(torch.nn.Module):
    """A layer's MLP whose product without a bias is a view, which is then written to."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(size, size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        product = self.linear(functional.dropout(hidden, 0.3, training=True))
        product += hidden
        return product.sin()


def test_a_layer_that_writes_in_place_keeps_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would keep, without a word, a product that was changed meanwhile."""
    monkeypatch.setattr(activation_checkpointing, "LEAST_INPUT", 0)
    learnt = []
    for how in (ActivationCheckpointing.none, ActivationCheckpointing.selective):
        model: Any = load(tmp_path, llama, Dtype.float32)
        torch.manual_seed(1)
        for layer in model.base_model.layers:
            layer.mlp = Scaled(model.config.hidden_size)
        checkpoint_activations(model, how)
        torch.manual_seed(2)
        learnt.append(learn(model, make_pack(groups(3))))
    (one, gradients), (other, again) = learnt
    assert torch.equal(one.losses, other.losses)
    assert all(torch.equal(gradient, again[name]) for name, gradient in gradients.items())


def test_losses_and_metrics_come_in_the_order_of_the_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(tmp_path, llama, Dtype.float32)
    examples = groups(7)
    monkeypatch.setitem(scoring._LOGITS_BYTES, "cpu", 64 * VOCABULARY * 4)
    asked: list[slice] = []

    def recorded(logps: TokenLogps, members: slice) -> tuple[Tensor, dict[str, Tensor]]:
        asked.append(members)
        return loss(logps, members)

    pack = make_pack(examples)
    scored = forward_backward(model, pack, recorded)
    assert [i for part in asked for i in range(part.start, part.stop)] == list(range(7))
    assert len(asked) > 2
    expected = sequence_logps(token_logps(model, pack), pack).view(-1, 2)
    assert torch.equal(scored.logps, expected)
    assert torch.equal(scored.metrics["margins"], expected[:, 0] - expected[:, 1])
    assert not scored.losses.requires_grad


@pytest.mark.parametrize("dtype", Dtype)
def test_rotary_positions_are_not_rounded_with_the_weights(tmp_path: Path, dtype: Dtype) -> None:
    """Rounded to bfloat16, they would turn token 1,900 by some hundredths too far or too little."""
    folder = model_folder(tmp_path, llama)
    ids = tuple(random.Random(0).choices(range(VOCABULARY), k=1900))
    group = TokenGroup("long", "long", ids[:1800], (TokenResponse(ids[1800:]),))
    trainer = Trainer(Scorer(load_model(folder, dtype), 2000), OptimizerConfig())
    batch = trainer.prepare([group])
    found = trainer.logps(batch).result().tokens[0]
    objective = sft_objective([group])
    trainer.forward_backward(batch, objective.batch_loss([0], None)).result()
    trainer.optim_step(1e-3).result()
    angles = trainer.scorer.model.get_buffer("model.rotary_emb.inv_freq")
    assert angles.tolist() == pytest.approx([1, 0.01], rel=1e-6)  # θ^(-2k/d), of 10,000 and 4
    trainer.close()
    with torch.no_grad():
        logits = LlamaForCausalLM.from_pretrained(folder)(torch.tensor([ids])).logits[0]
    right = logits.log_softmax(dim=-1)[range(1799, 1899), ids[1800:]].double()
    if dtype is not Dtype.bfloat16:
        torch.testing.assert_close(found.double(), right, rtol=0, atol=1e-4)
