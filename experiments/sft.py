"""SFT: a model learns from your own conversations, or from prompts with completions.

    temper run sft --data chats.jsonl --model MODEL
    temper run sft --data chats.jsonl --model MODEL sft/lora=lora sft.optimizer.learning_rate=1e-4
    temper run sft --data chats.jsonl --model MODEL sft.eval_every_steps=10 sft.keep_best=eval_loss
    temper run sft --data chats.jsonl --model MODEL loss=dft

A row is {"messages": [{"role": "user", "content": …}, {"role": "assistant", "content": …}, …]} or
{"prompt": …, "completion": …}.
"""

from dataclasses import dataclass, field

from pipeline import Step
from pipeline.experiment import ExperimentConfig, main
from steps.data.tokens.config import TokenizeConfig
from steps.import_model import import_model
from steps.jax_backend.backend_choice import training_choices
from steps.load_conversations import load_conversations
from steps.losses.base import SftLoss
from steps.losses.imitation.sft import Sft
from steps.losses.registry import SFT_LOSSES
from steps.sources import ModelSource, PreferenceData, load_model, load_rows
from steps.tokenize_conversations import tokenize_conversations
from steps.train_sft import train_sft
from steps.training.config import TrainConfig


@dataclass
class Config(ExperimentConfig):
    """Supervised fine-tuning."""

    data: PreferenceData = field(default_factory=PreferenceData)
    model: ModelSource = field(default_factory=ModelSource)
    tokenize: TokenizeConfig = field(default_factory=TokenizeConfig)
    sft: TrainConfig = field(default_factory=TrainConfig)
    loss: SftLoss = field(default_factory=Sft)


def sft(cfg: Config) -> dict[str, Step]:
    """Conversations → tokens → SFT."""
    base = load_model(import_model, cfg.model, dtype=cfg.sft.dtype)
    rows = load_rows(load_conversations, cfg.data, cfg.sft.eval_every_steps is not None)
    train = tokenize_conversations(rows["train"], tokenizer=base, config=cfg.tokenize)
    held_out = None
    if cfg.sft.eval_every_steps is not None:
        held_out = tokenize_conversations(rows["test"], tokenizer=base, config=cfg.tokenize)
    trained = train_sft(train, init=base, config=cfg.sft, held_out=held_out, loss=cfg.loss)
    return {"model": trained}


if __name__ == "__main__":
    main(sft, {"loss": SFT_LOSSES, **training_choices("sft")})
