"""Direct preference optimisation in one file of plain PyTorch, to be read from top to bottom.

    python examples/dpo_in_one_file.py

The model learns to say the larger of two digits. First it imitates answers of which half are the
larger digit and half the smaller, so it says either. Then DPO shows it pairs: the larger digit is
the chosen response, the smaller one the rejected.

**The derivation** (Rafailov et al. 2023, https://arxiv.org/abs/2305.18290). We want the policy π
with the largest expected reward that stays near a reference π_ref:

    max over π of   E[r(x, y)] − β KL(π ‖ π_ref)                                       (1)

For each prompt x this is −β KL(π ‖ π*) + β log Z(x), where

    π*(y|x) = π_ref(y|x) exp(r(x, y) / β) / Z(x),    Z(x) = Σ_y π_ref(y|x) exp(r(x, y) / β)

so π* is the best policy. Solve for the reward:

    r(x, y) = β log(π*(y|x) / π_ref(y|x)) + β log Z(x)                                 (2)

Every policy is thus the best one for some reward. Bradley and Terry's model says that a person
prefers the response w to the response l with probability σ(r(x, w) − r(x, l)). Put (2) in; Z(x)
cancels, which saves us from summing over all texts. What is left is a classifier of pairs, whose
negative log-likelihood is the loss:

    L = −log σ(m),    m = β [log π(w|x)/π_ref(w|x) − log π(l|x)/π_ref(l|x)]            (3)

The gradient is −σ(−m) β ∇[log π(w|x) − log π(l|x)]: pairs that are ordered wrongly pull hardest. At
the first step π = π_ref, so m = 0 and L = log 2, whatever the model and β are.

One thing to know: only the *difference* in (3) is bounded. Both log-probabilities may fall while
the loss falls, so the run prints the probability of the right answer too.

**What was left out**, because it changes no value here (Temper has all of it):

- packing: sequences are padded on the right, and the padding is computed for nothing;
- memory: the logits of a whole batch exist at once;
- the cached reference: it is scored once before training, but kept in memory only;
- the tokenizer and chat template, and the proof that the mask covers the answer alone;
- checkpoints, mixed precision, several devices, a schedule of the learning rate;
- label smoothing, weights of rows, and the other losses of `steps/losses`.

`tests/journeys/test_one_file_examples.py` holds the loss and every gradient of this file to those
of `steps/training`, in float64 to 1e-10.
"""

import random
from collections.abc import Sequence
from itertools import permutations

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, logsigmoid
from transformers import GPT2Config, GPT2LMHeadModel

LARGER, END, VOCABULARY = 10, 11, 12  # and the digits are tokens 0 to 9

Tokens = Sequence[int]
Pair = tuple[Tokens, Tokens, Tokens]
"""Prompt, chosen response, rejected response."""


def response_logps(model: nn.Module, prompts: list[Tokens], responses: list[Tokens]) -> Tensor:
    """log π(y|x) of n responses, summed over the tokens of each, float64 [n].

    A causal model reads only what stands before a token, so padding on the right needs no mask of
    attention. What the model predicts at padding and within prompts is left out of the sum.
    """
    rows = [[*x, *y] for x, y in zip(prompts, responses, strict=True)]
    ids = torch.tensor([row + [END] * (max(map(len, rows)) - len(row)) for row in rows])  # [n, t]
    logps = log_softmax(model(ids[:, :-1]).logits, dim=-1)  # [n, t - 1, vocabulary]
    own = logps.gather(2, ids[:, 1:, None])[:, :, 0].double()  # of the tokens that came, [n, t - 1]
    place = torch.arange(1, ids.shape[1])  # of the token that is predicted
    starts = torch.tensor([len(x) for x in prompts])[:, None]
    ends = torch.tensor([len(row) for row in rows])[:, None]
    return own.masked_fill((place < starts) | (place >= ends), 0).sum(dim=1)


def pair_logps(model: nn.Module, pairs: Sequence[Pair]) -> Tensor:
    """log π of chosen and rejected responses, in one forward; float64 [n, 2]."""
    prompts, chosen, rejected = map(list, zip(*pairs, strict=True))
    return response_logps(model, prompts * 2, chosen + rejected).view(2, -1).T


def dpo_losses(policy: Tensor, reference: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Equation (3): the losses of n pairs and their margins m, [n] each.

    Args:
        policy, reference: log-probabilities of chosen and rejected responses, [n, 2].
    """
    rewards = beta * (policy - reference)
    margins = rewards[:, 0] - rewards[:, 1]
    return -logsigmoid(margins), margins


def train_sft(model: nn.Module, pairs: Sequence[Pair], steps: int, rate: float) -> None:
    """Imitate both responses of each pair: the mean over tokens of −log π."""
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.0)
    for _ in range(steps):
        loss = -pair_logps(model, pairs).sum() / sum(len(y) for pair in pairs for y in pair[1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def train_dpo(
    model: nn.Module, pairs: Sequence[Pair], beta: float, epochs: int, batch: int, rate: float
) -> list[dict[str, float]]:
    """Train on shuffled batches; the metrics of each step."""
    with torch.no_grad():
        reference = pair_logps(
            model, pairs
        )  # before any update: it never changes, so score it once
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.0)
    log = []
    for _ in range(epochs):
        for indices in torch.randperm(len(pairs)).view(-1, batch):
            policy = pair_logps(model, [pairs[i] for i in indices.tolist()])
            losses, margins = dpo_losses(policy, reference[indices], beta)
            losses.mean().backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            accuracy = (margins > 0).double().mean()
            found = {"loss": losses.mean(), "margin": margins.mean(), "accuracy": accuracy}
            log.append({name: value.item() for name, value in {**found, "norm": norm}.items()})
    return log


def tiny_model() -> GPT2LMHeadModel:
    """A GPT-2 of 28,000 weights."""
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=8, n_embd=32, n_layer=2, n_head=4)
    config.bos_token_id = config.eos_token_id = END
    return GPT2LMHeadModel(config).eval()  # eval: without dropout


def digits() -> list[Pair]:
    """Of each two different digits, a pair of answers to the question which is the larger; [90]."""
    asked = list(permutations(range(10), 2))
    random.Random(0).shuffle(asked)
    return [((LARGER, a, b), (max(a, b), END), (min(a, b), END)) for a, b in asked]


def main() -> None:
    torch.manual_seed(0)
    model, pairs, test = tiny_model(), digits()[:64], digits()[64:]

    def tell(when: str) -> None:
        with torch.no_grad():
            right, wrong = pair_logps(model, test).exp().mean(dim=0).tolist()
        print(f"{when}: P(larger) = {right:.3f}, P(smaller) = {wrong:.3f}")

    tell("untrained")
    train_sft(model, pairs, steps=200, rate=3e-3)
    tell("after SFT")
    log = train_dpo(model, pairs, beta=0.1, epochs=10, batch=16, rate=5e-4)
    for step in (0, len(log) - 1):
        print(
            f"step {step + 1}:",
            ", ".join(f"{name} {value:.4f}" for name, value in log[step].items()),
        )
    tell("after DPO")


if __name__ == "__main__":
    main()
