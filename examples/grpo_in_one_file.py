"""Group relative policy optimisation in one file of plain PyTorch, to be read from top to bottom.

    python examples/grpo_in_one_file.py

The model learns to say the larger of two digits, and then to end, from rewards alone: it samples
completions, a function judges them, and what was better than the rest becomes more likely.

**The derivation.** We want the policy π with the largest expected reward of its own completions y.
The reward is no function of the weights, so the gradient falls on the probabilities alone:

    ∇ E[r(y)] = Σ_y r(y) ∇π(y) = E[r(y) ∇log π(y)]                                     (1)

(REINFORCE, Williams 1992.) This is right and noisy. Since Σ_y ∇π(y) = ∇1 = 0, any b that does not
depend on y may be subtracted from r; near the mean reward, it takes most of the noise away. GRPO
(Shao et al. 2024, https://arxiv.org/abs/2402.03300) takes the mean of the prompt's completions, so
it needs no value model, and divides by their spread:

    A_i = (r_i − mean(r)) / (std(r) + 10⁻⁴)                                            (2)

To take several steps on one set of samples, drawn from π_old, each token is weighted by the ratio
ρ = π/π_old, whose gradient at π = π_old is ∇log π. The ratio is clipped where it has moved far in
the direction of A: then the gradient is 0, and π stays near π_old (PPO, Schulman et al. 2017):

    gain = min(ρ A, clip(ρ, 1 − ε, 1 + ε) A)                                           (3)

A penalty keeps π near a frozen reference. Per token it is k3 = u − log u − 1 with u = π_ref/π. It
is never negative, and its mean over samples of π is KL(π ‖ π_ref). The loss of a batch is the mean
over completions of their means over tokens:

    L = mean over i of  1/|y_i| Σ_t [β k3 − gain]                                      (4)

One thing to know: the gradient of k3 at fixed samples is that of the other divergence,
KL(π_ref ‖ π). Dividing by std(r) weighs prompts unevenly, and by |y_i| makes long wrong completions
cheap (Liu et al. 2025, https://arxiv.org/abs/2503.20783). Temper's default does neither; this file
is the method as published.

**What was left out** (Temper has all of it):

- a cache of keys and values: each new token reads its whole prompt again;
- draws that depend on the row alone, so that a killed run goes on with the same samples;
- the sampler elsewhere, and the correction where it is not quite the policy that is trained;
- packing, checkpoints, several devices, completions without a verdict, episodes of several turns.

`tests/journeys/test_one_file_examples.py` holds the loss and every gradient of this file to those
of `steps/online`, in float64 to 1e-10.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax
from transformers import GPT2Config, GPT2LMHeadModel

LARGER, END, VOCABULARY = 10, 11, 12  # and the digits are tokens 0 to 9

Tokens = Sequence[int]


@torch.no_grad()
def sample(model: nn.Module, prompts: Sequence[Tokens], longest: int) -> list[Tokens]:
    """A completion of each of n prompts of one length: up to and with its first END, at most
    `longest` tokens, drawn from the whole distribution."""
    ids = torch.tensor(prompts)
    for _ in range(longest):
        chances = model(ids).logits[:, -1].softmax(dim=-1)
        ids = torch.cat([ids, torch.multinomial(chances, 1)], dim=1)
    drawn = ids[:, len(prompts[0]) :].tolist()
    return [y[: y.index(END) + 1] if END in y else y for y in drawn]


def token_logps(
    model: nn.Module, prompts: Sequence[Tokens], completions: Sequence[Tokens]
) -> tuple[Tensor, Tensor]:
    """log π of each token, float64 [n, t], and which places are tokens of completions, [n, t].

    A causal model reads only what stands before a token, so padding on the right needs no mask of
    attention.
    """
    rows = [[*x, *y] for x, y in zip(prompts, completions, strict=True)]
    ids = torch.tensor([row + [END] * (max(map(len, rows)) - len(row)) for row in rows])
    logps = log_softmax(model(ids[:, :-1]).logits, dim=-1)
    place = torch.arange(1, ids.shape[1])  # of the token that is predicted
    starts = torch.tensor([len(x) for x in prompts])[:, None]
    ends = torch.tensor([len(row) for row in rows])[:, None]
    counts = (place >= starts) & (place < ends)
    return logps.gather(2, ids[:, 1:, None])[:, :, 0].double(), counts


def advantages(rewards: Tensor) -> Tensor:
    """Equation (2), of the rewards of k completions of each of n prompts, [n, k]."""
    return (rewards - rewards.mean(dim=1, keepdim=True)) / (rewards.std(dim=1, keepdim=True) + 1e-4)


def grpo_loss(
    policy: Tensor,
    old: Tensor,
    reference: Tensor,
    counts: Tensor,
    gains: Tensor,
    beta: float,
    clip: float = 0.2,
) -> Tensor:
    """Equation (4).

    Args:
        policy, old, reference: log-probabilities of tokens, [n, t].
        counts: which of them are tokens of completions, [n, t].
        gains: the advantages of the completions, [n].
    """
    ratio, gains = (policy - old).exp(), gains[:, None]
    gain = torch.minimum(ratio * gains, ratio.clamp(1 - clip, 1 + clip) * gains)
    behind = reference - policy
    losses = beta * (behind.exp() - behind - 1) - gain
    return (losses.masked_fill(~counts, 0).sum(dim=1) / counts.sum(dim=1)).mean()


def reward(prompt: Tokens, completion: Tokens) -> float:
    """Half for the larger digit, and half for an end behind one token."""
    return 0.5 * (completion[0] == max(prompt[1:])) + 0.5 * (END in completion[1:2])


def train(
    model: nn.Module, iterations: int, prompts: int, completions: int, rate: float, beta: float
) -> None:
    """Each iteration samples, judges, and takes two steps on the samples."""
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.0)
    start = tiny_model()
    start.load_state_dict(model.state_dict())
    for iteration in range(iterations):
        digits = torch.stack([torch.randperm(10)[:2] for _ in range(prompts)]).tolist()
        asked = [(LARGER, *pair) for pair in digits for _ in range(completions)]
        drawn = sample(model, asked, longest=3)
        given = torch.tensor([reward(x, y) for x, y in zip(asked, drawn, strict=True)])
        gains = advantages(given.double().view(prompts, completions)).flatten()
        with torch.no_grad():
            old, counts = token_logps(model, asked, drawn)
            reference, _ = token_logps(start, asked, drawn)
        for _ in range(2):
            policy, _ = token_logps(model, asked, drawn)
            grpo_loss(policy, old, reference, counts, gains, beta).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if iteration % 10 == 0 or iteration == iterations - 1:
            apart = (old - reference)[counts].mean()
            print(f"iteration {iteration + 1}: reward {given.mean():.3f}, KL per token {apart:.3f}")


def tiny_model() -> GPT2LMHeadModel:
    """A GPT-2 of 28,000 weights."""
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=8, n_embd=32, n_layer=2, n_head=4)
    config.bos_token_id = config.eos_token_id = END
    return GPT2LMHeadModel(config).eval()  # eval: without dropout


def main() -> None:
    torch.manual_seed(0)
    train(tiny_model(), iterations=60, prompts=16, completions=8, rate=2e-3, beta=0.01)


if __name__ == "__main__":
    main()
