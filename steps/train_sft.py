"""``train_sft``: supervised fine-tuning on conversations, or on the chosen responses of pairs."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline import Metrics, Output, step
from steps.core_adapters.own_tokens import tokens_for, with_template_of
from steps.core_adapters.workplace_of import at_work
from steps.data.images.images_of_rows import rows_with_images
from steps.kinds import ConversationTokens, Model, PairTokens
from steps.losses.base import SftLoss
from steps.losses.imitation.sft import Sft
from steps.training.config import TrainConfig


@step(makes=Model, estimate="steps.step_needs:of_model", added={"loss": Sft()})
def train_sft(
    out: Output,
    tokens: PairTokens | ConversationTokens,
    init: Model,
    config: TrainConfig = TrainConfig(),
    held_out: PairTokens | ConversationTokens | None = None,
    loss: SftLoss = Sft(),
) -> Metrics:
    """Write a model folder and ``metrics.jsonl``. An interrupted step resumes from its last
    checkpoint.

    Args:
        tokens: conversations; or preference pairs, of which only the chosen responses are used.
        init: the model to start from.
        held_out: other conversations or pairs, for evaluation during training.
        loss: of the tokens; by default their negative log-likelihood.
    """
    from steps.training.recipes import run_sft

    with at_work(out) as place:
        metrics = run_sft(
            init.path,
            _demonstrations(tokens_for(init, tokens)),
            config,
            place,
            None if held_out is None else _demonstrations(tokens_for(init, held_out)),
            loss,
        )
        return with_template_of(tokens, place, metrics)


def _demonstrations(tokens: Path) -> Iterator[Mapping[str, Any]]:
    from steps.scoring.examples import chosen_as_demonstration

    for record in rows_with_images(tokens):
        yield chosen_as_demonstration(record) if "chosen_ids" in record else record
