"""Learning from one's own best answers, twice: sample, judge, select, imitate (RAFT).

    python examples/best_of_n.py

You learn that rounds which are few and big are a loop over steps: more rounds run only what is new.
The method is Dong et al. 2023, arXiv:2304.06767; ``select_pairs`` in place of
``select_demonstrations`` makes it iterative DPO.
"""

from pipeline import run
from steps.generation.config import SamplingConfig
from steps.judge import judge
from steps.online.selection import Best
from steps.sample_rollouts import sample_rollouts
from steps.select_demonstrations import select_demonstrations
from steps.train_sft import train_sft
from steps.training.config import OptimizerConfig, TrainConfig
from sums import model, questions

ROUNDS = 2
imitating = TrainConfig(epochs=5, optimizer=OptimizerConfig(learning_rate=1e-3))

results = {}
for done in range(ROUNDS + 1):
    drawing = SamplingConfig(max_new_tokens=16, temperature=1.0, num_completions=8, seed=done)
    verdicts = judge(sample_rollouts(questions, model, drawing))  # right: the answer in a box alone
    results[f"rounds: {done}"] = verdicts
    best = select_demonstrations(verdicts, Best(per_prompt=1))
    model = train_sft(best, init=model, config=imitating).named(f"round {done + 1}")

if __name__ == "__main__":
    run(results)  # the model of a round that nobody judges is not trained
