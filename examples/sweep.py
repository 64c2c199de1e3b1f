"""A sweep, cell by cell, as in a notebook: run, tabulate, choose, look inside.

    python examples/sweep.py

You learn what ``run`` returns. Variants share the steps that do not depend on beta and rate; those
run once. ``docs/python.md`` lists all that an artifact offers.
"""

# %% Twelve variants would be as easy: a step is a value, and a sweep is a loop.
from itertools import product

from dpo_on_my_rows import before, tokens
from pipeline import results, run
from steps.evaluate import evaluate
from steps.losses.dpo import Dpo
from steps.train_on_pairs import train_on_pairs
from steps.training.config import OptimizerConfig, PreferenceConfig
from sums import model

models, scores = {}, {}
for beta, rate in product((0.1, 1.0), (1e-4, 3e-4)):
    name = f"beta={beta} rate={rate}"
    config = PreferenceConfig(loss=Dpo(beta), epochs=4, optimizer=OptimizerConfig(rate))
    models[name] = train_on_pairs(tokens["train"], policy=model, config=config)
    scores[name] = evaluate(tokens["test"], models[name], baseline=before, loss=config.loss)

# %% Every evaluation is a row, with the settings in which the rows differ as columns.
made = run(scores)
table = results(made).to_pandas().set_index("result")
print(table[["beta", "learning_rate", "gain/logps/margins"]].to_string())

# %% The best one: its answers to held-out prompts, and its model.
best = str(table["gain/logps/margins"].idxmax())
for answer in made[best].load("answers.jsonl"):
    print(answer["prompt"], answer["answer"])
network, tokenizer = run({best: models[best]}, verbosity=-1)[best].load()
print(f"{best}: {network.num_parameters():,} parameters, {len(tokenizer)} tokens")
