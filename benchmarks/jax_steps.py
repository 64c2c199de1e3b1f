"""CPU seconds of DPO steps on one core: torch and `backend=jax`, in turns.

    python benchmarks/jax_steps.py --rounds 5     # three minutes

A Llama of 11 M parameters with random weights and eight pairs of some 630 tokens, with the settings
that a training step has by default; each pair is a forward by itself. The first two steps, which
compile, are printed apart. Needs ``pip install 'temper-ml[jax]'``.
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

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from steps.jax_backend.backend_choice import JaxTraining
from steps.losses.dpo import Dpo
from steps.models.ranks import ALONE
from steps.scoring.examples import TokenGroup, TokenResponse
from steps.training.config import TrainConfig
from steps.training.objectives import Objective, preference_objective
from steps.training.policy import open_policy
from steps.training.trainer import Trainer

VOCABULARY, PAIRS = 4096, 8


def pairs() -> list[TokenGroup]:
    """A third of each pair is its prompt, and about a third each response."""
    draw, found = random.Random(0), []
    for number in range(PAIRS):
        third = (627 + draw.randrange(-100, 100)) // 3
        sizes = (third, third + (more := draw.randrange(-40, 40)), third - more)
        prompt, *both = (tuple(draw.randrange(VOCABULARY) for _ in range(n)) for n in sizes)
        name = str(number)
        found.append(TokenGroup(name, name, prompt, tuple(map(TokenResponse, both))))
    return found


def seconds(trainer: Trainer, objective: Objective) -> float:
    begun = time.process_time()
    loss = objective.batch_loss(range(PAIRS), None)
    result = trainer.forward_backward(trainer.prepare(objective.groups), loss)
    trainer.optim_step(1e-5).result()
    result.result()
    return time.process_time() - begun


def main(rounds: int) -> None:
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    objective = preference_objective(pairs(), Dpo(), torch.full((PAIRS, 2), -2000.0).double())
    with TemporaryDirectory() as made:
        LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=384,
                intermediate_size=1024,
                num_hidden_layers=6,
                num_attention_heads=6,
                num_key_value_heads=2,
                tie_word_embeddings=True,
            )
        ).save_pretrained(made)
        config = TrainConfig(tokens_per_forward=1024)
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
            print(f"{name}: {statistics.median(column):.2f} CPU s a step")
        print(f"jax / torch: {statistics.median(ours / theirs for theirs, ours in times):.2f}")
        for policy in policies.values():
            policy.trainer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    main(parser.parse_args().rounds)
