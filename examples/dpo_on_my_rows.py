"""DPO on rows of your own, evaluated on prompts that are held out.

    python examples/dpo_on_my_rows.py

You learn how to name the columns of a file, how a fifth of its prompts is held out, and why the
evaluation before training is an input of the one after it: rewards compare the two models. For
rows and a model of your own, change ``columns`` and the path, put ``import_model(File("MODEL"))``
in place of ``model``, and leave out ``TOKENIZE`` and the learning rate.
"""

from pipeline import File, run
from steps.data.formats.choice import FormatChoice
from steps.data.load.config import LoadConfig
from steps.evaluate import evaluate
from steps.load_preferences import load_preferences
from steps.losses.dpo import Dpo
from steps.tokenize_preferences import tokenize_preferences
from steps.train_on_pairs import train_on_pairs
from steps.training.config import OptimizerConfig, PreferenceConfig
from sums import DATA, TOKENIZE, model

columns = {"prompt": "question", "chosen": "good", "rejected": "bad"}
pairs = load_preferences(
    File(f"{DATA}/pairs.jsonl"),
    config=LoadConfig(test_fraction=0.2, format=FormatChoice("preference", columns)),
)
tokens = tokenize_preferences(pairs, tokenizer=model, config=TOKENIZE)
loss = Dpo(beta=0.5)
config = PreferenceConfig(loss=loss, epochs=4, optimizer=OptimizerConfig(learning_rate=3e-4))
trained = train_on_pairs(tokens["train"], policy=model, config=config)  # with its reference

before = evaluate(tokens["test"], model)
after = evaluate(tokens["test"], trained, baseline=before, loss=loss, baseline_model=model)

if __name__ == "__main__":
    run({"before DPO": before, "after DPO": after})
