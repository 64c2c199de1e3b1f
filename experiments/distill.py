"""Distillation: a model learns a larger model's distribution at the tokens of your conversations.

    temper run distill --data chats.jsonl --model MODEL teacher.path=FOLDER
    temper run distill --data chats.jsonl --model MODEL teacher.path=FOLDER loss=reverse_kl
    temper run distill --data chats.jsonl --model MODEL teacher.path=FOLDER loss.temperature=2
    temper run distill --data chats.jsonl --model MODEL teacher.path=FOLDER scoring.top_k=128

A row is {"messages": [{"role": "user", "content": …}, {"role": "assistant", "content": …}, …]} or
{"prompt": …, "completion": …}. A teacher of the Hub is teacher.hub=NAME teacher.revision=COMMIT. It
reads the rows once, whatever is changed about the training of the student.
"""

from dataclasses import dataclass, field

from pipeline import Input, Step
from pipeline.experiment import ExperimentConfig, main
from steps.data.tokens.config import TokenizeConfig
from steps.distillation.config import TeacherConfig
from steps.import_model import import_model
from steps.load_conversations import load_conversations
from steps.losses.distillation.distillation_loss import DistillationLoss
from steps.losses.distillation.forward_kl import ForwardKl
from steps.losses.registry import DISTILLATION_LOSSES
from steps.models.config import ADAPTERS
from steps.sources import ModelSource, PreferenceData, load_model, load_rows, load_teacher
from steps.teacher_logprobs import teacher_logprobs
from steps.tokenize_conversations import tokenize_conversations
from steps.train_sft import train_sft
from steps.training.config import TrainConfig


@dataclass
class Config(ExperimentConfig):
    """Distillation of a teacher on conversations.

    Args:
        teacher: the model to learn from, with the vocabulary of ``model``.
        scoring: how the teacher's distribution is computed and kept.
        distill: how the student is trained.
    """

    data: PreferenceData = field(default_factory=PreferenceData)
    model: ModelSource = field(default_factory=ModelSource)
    teacher: ModelSource = field(default_factory=ModelSource)
    tokenize: TokenizeConfig = field(default_factory=TokenizeConfig)
    scoring: TeacherConfig = field(default_factory=TeacherConfig)
    distill: TrainConfig = field(default_factory=TrainConfig)
    loss: DistillationLoss = field(default_factory=ForwardKl)


def distill(cfg: Config) -> dict[str, Step]:
    """Conversations → tokens → the teacher's distribution there → the student."""
    teacher = load_teacher(import_model, cfg.teacher, dtype=cfg.scoring.dtype)
    student = load_model(import_model, cfg.model, dtype=cfg.distill.dtype)
    rows = load_rows(load_conversations, cfg.data, cfg.distill.eval_every_steps is not None)

    def scored(split: str) -> tuple[Step | Input, Step]:
        tokens = tokenize_conversations(rows[split], tokenizer=student, config=cfg.tokenize)
        return tokens, teacher_logprobs(tokens, teacher, cfg.scoring)

    held_out, of_held_out = None, None
    tokens, of_tokens = scored("train")
    if cfg.distill.eval_every_steps is not None:
        held_out, of_held_out = scored("test")
    trained = train_sft(tokens, student, cfg.distill, held_out, cfg.loss, of_tokens, of_held_out)
    return {"model": trained}


if __name__ == "__main__":
    main(distill, {"loss": DISTILLATION_LOSSES, "distill.lora": ADAPTERS})
