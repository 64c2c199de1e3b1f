"""A reward model from pairs, and how often its favourite of several answers is right.

    python examples/reward_model.py

You learn how to train one, how to let it score pairs and answers, and why pairs alone do not tell
how far it can be trusted. These pairs differ in length alone, both of their sums are right: so the
held-out pairs are easy, and of many answers it likes a short one, right or wrong.
``docs/reward_models.md`` is about that.
"""

from dpo_on_my_rows import tokens
from pipeline import run
from steps.evaluate_reward_model import BestOfConfig, evaluate_reward_model
from steps.generation.config import SamplingConfig
from steps.reward_models.config import RewardConfig
from steps.sample_completions import sample_completions
from steps.score_with_reward_model import score_with_reward_model
from steps.train_reward_model import train_reward_model
from steps.training.config import OptimizerConfig
from sums import TOKENIZE, model, questions

config = RewardConfig(epochs=20, optimizer=OptimizerConfig(learning_rate=3e-3))
reward = train_reward_model(tokens["train"], init=model, config=config)
drawing = SamplingConfig(max_new_tokens=16, temperature=1.0, num_completions=8)
answers = sample_completions(questions, model, drawing)

of_pairs = score_with_reward_model(tokens["test"], reward)
of_answers = score_with_reward_model(answers, reward, tokenize=TOKENIZE)
evaluation = evaluate_reward_model(of_pairs, of_answers, BestOfConfig([1, 2, 4, 8]))

if __name__ == "__main__":
    made = run({"reward model": reward, "evaluation": evaluation})
    for point in made["evaluation"].load("best_of_n.jsonl"):
        shares = {who: round(point[who]["value"], 2) for who in ("reward_model", "checker")}
        print(f"best of {point['n']}, share that is right: {shares}")
