"""CPU seconds of training steps on one core: torch and `backend=jax`, in turns.

    python benchmarks/jax_steps.py --rounds 5               # three minutes
    python benchmarks/jax_steps.py --rounds 28 --small
    python benchmarks/jax_steps.py --rounds 28 --sft

A Llama of 11 M parameters with random weights and eight pairs of some 630 tokens, with the settings
that a training step has by default; each pair is a forward by itself. With `--small`, the Llama of
`dpo_arithmetic` and 64 pairs of some 30 tokens in one forward; with `--sft`, that Llama and 128
demonstrations of 18 tokens in two forwards. The first two steps, which compile, are printed apart.
Needs ``pip install 'temper-ml[jax]'``.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"

import argparse
import random
import statistics
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from steps.jax_backend.backend_choice import JaxTraining
from steps.losses.dpo import Dpo
from steps.models.ranks import ALONE
from steps.scoring.examples import TokenGroup, TokenResponse
from steps.training.config import TrainConfig
from steps.training.objectives import Objective, preference_objective, sft_objective
from steps.training.policy import open_policy
from steps.training.trainer import Trainer


def pairs(count: int, tokens: int, vocabulary: int) -> list[TokenGroup]:
    """A third of each pair is its prompt, and about a third each response."""
    draw, found = random.Random(0), []
    for number in range(count):
        third = (tokens + draw.randrange(-tokens // 6, tokens // 6)) // 3
        sizes = (third, third + (more := draw.randrange(-tokens // 16, tokens // 16)), third - more)
        prompt, *both = (tuple(draw.randrange(vocabulary) for _ in range(n)) for n in sizes)
        name = str(number)
        found.append(TokenGroup(name, name, prompt, tuple(map(TokenResponse, both))))
    return found


def demonstrations(count: int, vocabulary: int) -> list[TokenGroup]:
    """Those of `dpo_arithmetic`: twelve tokens of prompt and six of response."""
    draw, found = random.Random(0), []
    for name in map(str, range(count)):
        tokens = tuple(draw.randrange(vocabulary) for _ in range(18))
        found.append(TokenGroup(name, name, tokens[:12], (TokenResponse(tokens[12:]),)))
    return found


def seconds(trainer: Trainer, objective: Objective) -> float:
    begun = time.process_time()
    loss = objective.batch_loss(range(len(objective.groups)), None)
    result = trainer.forward_backward(trainer.prepare(objective.groups), loss)
    trainer.optim_step(1e-5).result()
    result.result()
    return time.process_time() - begun


def main(rounds: int, small: bool, sft: bool) -> None:
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if sft:
        small, objective = True, sft_objective(demonstrations(128, 34))
    else:
        groups = pairs(64, 30, 34) if small else pairs(8, 627, 4096)
        expected = torch.full((len(groups), 2), -30.0 if small else -2000.0).double()
        objective = preference_objective(groups, Dpo(), expected)
    print(f"{sum(group.packed_tokens for group in objective.groups)} tokens")
    big: dict[str, Any] = {"vocab_size": 4096, "hidden_size": 384, "intermediate_size": 1024}
    little: dict[str, Any] = {"vocab_size": 34, "hidden_size": 96, "intermediate_size": 256}
    depth, heads, key_heads = (2, 4, 4) if small else (6, 6, 2)
    with TemporaryDirectory() as made:
        LlamaForCausalLM(
            LlamaConfig(
                **(little if small else big),
                num_hidden_layers=depth,
                num_attention_heads=heads,
                num_key_value_heads=key_heads,
                tie_word_embeddings=True,
                bos_token_id=None,
                eos_token_id=None,
            )
        ).save_pretrained(made)
        config = TrainConfig(tokens_per_forward=2048 if small else 1024)
        backends = {"torch": None, "jax": JaxTraining(devices=1)}
        policies = {
            name: open_policy(Path(made), replace(config, backend=backend), ALONE)
            for name, backend in backends.items()
        }
        for name, policy in policies.items():
            policy.make_ready(objective.groups)
            first = [seconds(policy.trainer, objective) for _ in range(2)]
            print(f"{name}: the first two steps {first[0]:.1f} and {first[1]:.1f} CPU s")
        times = [[seconds(p.trainer, objective) for p in policies.values()] for _ in range(rounds)]
        for name, column in zip(policies, zip(*times, strict=True), strict=True):
            print(f"{name}: {statistics.median(column):.3f} CPU s a step")
        print(f"jax / torch: {statistics.median(ours / theirs for theirs, ours in times):.2f}")
        for policy in policies.values():
            policy.trainer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--sft", action="store_true")
    main(**vars(parser.parse_args()))
