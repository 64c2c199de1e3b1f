r"""What the examples begin with: questions, and a tiny model that says too much half of the time.

Two teachers answer each question in ``data/demonstrations.jsonl``: one with ``\boxed{3}``, the
other with ``1 + 2 is \boxed{3}``. The other examples teach the model to fill in the box and to say
nothing else. Calling a step runs nothing: the example that runs first makes this model, and the
others find it in the store.
"""

from pathlib import Path

from pipeline import File
from steps.data.tokens.config import TokenizeConfig
from steps.init_model import LlamaShape, init_model
from steps.load_conversations import load_conversations
from steps.load_prompts import load_prompts
from steps.tokenize_conversations import tokenize_conversations
from steps.train_sft import train_sft
from steps.training.config import OptimizerConfig, TrainConfig

DATA = Path(__file__).parent / "data"
TOKENIZE = TokenizeConfig(max_length=64, max_prompt_length=32)  # the model has 64 positions

base = init_model(LlamaShape(hidden_size=32, layers=1, heads=2, feed_forward=64))
demonstrations = load_conversations(File(f"{DATA}/demonstrations.jsonl"))["train"]
questions = load_prompts(File(f"{DATA}/questions.jsonl"))["train"]
model = train_sft(
    tokenize_conversations(demonstrations, tokenizer=base, config=TOKENIZE),
    init=base,
    config=TrainConfig(
        epochs=40, batch_size=24, optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=5)
    ),
)
