"""Training for each family of losses: from token records to a model folder.

    run_sft              demonstrations                    with dropout
    run_reference_free   pairs                             SimPO, CPO, ORPO, …
    run_dpo              pairs and their reference         DPO, or any other `ReferenceLoss`
    run_kto              single responses, labelled good   KTO
                         or bad, and their reference

Each writes the trained model folder and its metrics.jsonl to the workplace's output, resumes from
the checkpoints in its scratch, and returns `metrics.summarise` of the run. `held_out` are examples
for evaluation during training.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from steps.losses.base import SftLoss
from steps.losses.imitation.sft import Sft
from steps.models.workplace import Workplace
from steps.scoring.examples import (
    Groups,
    TokenGroup,
    joined,
    mismatched,
    read_demonstrations,
    read_pairs,
    read_unpaired,
)
from steps.scoring.reference import Reference, read_reference
from steps.training.beside.live_reference import BESIDE_REFERENCE
from steps.training.config import DpoConfig, KtoConfig, ReferenceFreeConfig, TrainConfig
from steps.training.objectives import (
    Objective,
    preference_objective,
    sft_objective,
    unpaired_objective,
)
from steps.training.policy import LANGUAGE_MODEL, Role, open_policy
from steps.training.run import Records, Run
from steps.training.trainer import LOGPS_AND_HITS

Examples = tuple[Records, Path]
"""Tokenised examples, and the folder of their reference, which `run_reference` wrote."""


def run_sft(
    init: Path,
    records: Records,
    config: TrainConfig,
    place: Workplace,
    held_out: Records | None = None,
    loss: SftLoss = Sft(),
) -> dict[str, Any]:
    """Train the model folder `init` on records in the format of `examples.read_demonstrations`.
    The model's dropout, if any, is on."""

    def objective(groups: Sequence[TokenGroup]) -> Objective:
        return sft_objective(groups, loss)

    examples, role = (records, held_out), Role(readout=LOGPS_AND_HITS)
    return _train(
        init, examples, config, place, read_demonstrations, objective, dropout=True, role=role
    )


def run_reference_free(
    policy: Path,
    records: Records,
    config: ReferenceFreeConfig,
    place: Workplace,
    held_out: Records | None = None,
) -> dict[str, Any]:
    """Train the model folder `policy` on records in the format of `examples.read_pairs`, without a
    reference."""

    def objective(pairs: Sequence[TokenGroup]) -> Objective:
        return preference_objective(pairs, config.loss)

    examples = (records, held_out)
    return _train(policy, examples, config, place, read_pairs, objective, loss=config.loss.name)


def run_dpo(
    policy: Path,
    records: Records,
    reference: Path,
    config: DpoConfig,
    place: Workplace,
    held_out: Examples | None = None,
) -> dict[str, Any]:
    """As `run_reference_free`, compared with `reference`, a folder that `run_reference` wrote.

    Held-out examples are compared with that even if the reference follows the policy: their values
    would mean something else after each of its moves.
    """

    def objective(pairs: Sequence[TokenGroup], reference: Reference) -> Objective:
        tokens = reference.tokens_of(pairs) if config.loss.needs_tokens else None
        follows = config.follow_every, config.follow_alpha
        return preference_objective(pairs, config.loss, reference.of(pairs), tokens, *follows)

    return _against_reference(
        policy,
        (records, reference),
        held_out,
        config,
        place,
        loss=config.loss.name,
        check_start=config.check_start,
        read=read_pairs,
        objective=objective,
        role=BESIDE_REFERENCE if config.loss.needs_divergence else LANGUAGE_MODEL,
    )


def run_kto(
    policy: Path,
    records: Records,
    reference: Path,
    config: KtoConfig,
    place: Workplace,
    held_out: Examples | None = None,
) -> dict[str, Any]:
    """Like `run_dpo`, on records in the format of `examples.read_unpaired`."""

    def objective(groups: Sequence[TokenGroup], reference: Reference) -> Objective:
        others = mismatched(groups)
        return unpaired_objective(
            groups, config.loss, reference.of(groups)[:, 0], others, reference.of(others)[:, 0]
        )

    return _against_reference(
        policy,
        (records, reference),
        held_out,
        config,
        place,
        loss=config.loss.name,
        check_start=config.check_start,
        read=read_unpaired,
        objective=objective,
    )


def _train(
    folder: Path,
    examples: tuple[Records, Records | None],
    config: TrainConfig,
    place: Workplace,
    read: Callable[[Records, int], Groups],
    objective: Callable[[Sequence[TokenGroup]], Objective],
    *,
    dropout: bool = False,
    loss: str | None = None,
    role: Role = LANGUAGE_MODEL,
) -> dict[str, Any]:
    """Train without a reference.

    Args:
        examples: the records for training, and the held-out records or None.
        read: converts records to groups, given the size of the vocabulary.
        loss: the name of the loss for summary.md; without it, there is no summary.md.
    """
    opened = open_policy(folder, config, place.ranks, dropout, role)
    groups = read(examples[0], opened.vocabulary)
    held_out = None if examples[1] is None else objective(read(examples[1], opened.vocabulary))
    run = Run(folder, opened, groups, config, place, others=_scored_by(held_out))
    return run.train(objective(groups), held_out, loss=loss)


def _scored_by(objective: Objective | None) -> Sequence[TokenGroup]:
    """All groups that an objective scores: its examples, and those of its baseline."""
    if objective is None:
        return ()
    return joined(objective.groups, objective.baseline_groups or ())


def _against_reference(
    policy: Path,
    examples: Examples,
    held_out: Examples | None,
    config: TrainConfig,
    place: Workplace,
    *,
    loss: str,
    check_start: bool,
    read: Callable[[Records, int], Groups],
    objective: Callable[[Sequence[TokenGroup], Reference], Objective],
    role: Role = LANGUAGE_MODEL,
) -> dict[str, Any]:
    """Like `_train`, with a reference. Dropout is off, as in the computation of the reference.

    Differences between losses are arguments: an annotation with the configs of both losses would
    add each loss's code to the other's key.

    Raises ValueError if the logps of a reference are not comparable with the policy's, or if the
    two references come from different models.
    """
    records, folder = examples
    opened = open_policy(policy, config, place.ranks, role=role)
    groups = read(records, opened.vocabulary)
    reference = read_reference(folder)
    references, trained, evaluated = [reference], objective(groups, reference), None
    if held_out is not None:
        references.append(read_reference(held_out[1]))
        if references[1].model != reference.model:
            raise ValueError(
                f"the references in {references[1].folder} and in {folder} are of two models; "
                "compute both from the one that training starts from"
            )
        evaluated = objective(read(held_out[0], opened.vocabulary), references[1])
    run = Run(
        policy,
        opened,
        groups,
        config,
        place,
        others=joined(_scored_by(trained), _scored_by(evaluated)),
        shown_by=references if check_start else (),
    )
    for each in references:
        run.require_comparable(each)
    return run.train(
        trained,
        evaluated,
        loss=loss,
        at_start=run.start_check(reference) if check_start else None,
    )
