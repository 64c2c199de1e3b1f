"""A teacher of an online run, whose examples come into being while it runs.

    FOLDER/teacher-000000.parquet    its distribution in the first iteration, as `cached_teacher`
                                     writes it; at the end it lies beside the rollouts

Its numbers are read from that file in any case, so a replay, which needs no teacher, has the same.
An example is found by its tokens, so no other one can get its numbers.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from steps.distillation.cached_teacher import Teacher, open_teacher, teacher_in
from steps.distillation.config import TeacherConfig
from steps.models.ranks import Ranks
from steps.scoring.examples import TokenGroup
from steps.scoring.reference import write_file


@dataclass(frozen=True)
class OnlineTeacher:
    """The teacher in a `folder` of files.

    vocabulary: the number of tokens that its distribution is over.
    write: makes the file of some examples, if it is not there.
    """

    folder: Path
    vocabulary: int
    write: Callable[[Path, Sequence[TokenGroup]], None]
    close: Callable[[], None] = lambda: None
    notices: tuple[str, ...] = ()

    def of(
        self, iteration: int, groups: Sequence[TokenGroup]
    ) -> tuple[tuple[TokenGroup, ...], Teacher]:
        """The examples of the 0-based `iteration`, with the ids that the teacher has at each of
        their tokens, and the teacher.

        Raises:
            ValueError: a row, which it names, has a token that the teacher does not know; or the
                file is damaged, or of other examples.
            FloatingPointError: the teacher's logps of a row, which it names, are not finite.
        """
        for group in groups:
            largest = max(max(response.ids) for response in group.responses)
            if largest >= self.vocabulary:
                raise ValueError(
                    f"row {group.row!r}: a completion has the token {largest}, and the teacher "
                    f"knows those below {self.vocabulary}; they must share one vocabulary"
                )
        file = file_of(self.folder, iteration)
        named = [replace(group, group_id=_digest(group)) for group in groups]
        self.write(file, named)
        teacher = teacher_in([file])
        return tuple(teacher.asked(named)), teacher


def file_of(folder: Path, iteration: int) -> Path:
    """The file of a 0-based iteration."""
    return folder / f"teacher-{iteration:06d}.parquet"


def live_teacher(
    model: Path,
    student: Path,
    config: TeacherConfig,
    examples: Sequence[TokenGroup],
    folder: Path,
    ranks: Ranks,
) -> OnlineTeacher:
    """The model in a folder as a teacher; it stays loaded until it is closed.

    Args:
        student: the folder of its student, with the tokenizer.
        examples: examples like those that it will read.

    Raises ValueError if its tokens mean something else than the student's.
    """
    opened = open_teacher(model, config, ranks, student)
    form, notices = opened.make_ready(examples)

    def write(file: Path, groups: Sequence[TokenGroup]) -> None:
        write_file(file, opened.model, groups, form, ranks)

    close = opened.model.scorer.close
    return OnlineTeacher(folder, opened.vocabulary, write, close, tuple(notices))


def recorded_teacher(folder: Path, top_k: int) -> OnlineTeacher:
    """The teacher beside the rollouts of a run.

    Raises ValueError if there is none, or if it keeps less than `top_k` tokens.
    """
    first = next(iter(sorted(folder.glob("teacher-*.parquet"))), None)
    if first is None:
        raise ValueError(
            f"{folder} has no teacher's log-probabilities; take rollouts of train_online with a "
            "teacher"
        )
    kept, vocabulary = teacher_in([first]).shape
    if kept < min(top_k, vocabulary):
        raise ValueError(
            f"the teacher in {folder} keeps {kept} of {vocabulary} tokens, and the method reads "
            f"{top_k}; set top_k={kept}, or train again with the teacher"
        )
    return OnlineTeacher(folder, vocabulary, lambda file, groups: None)


def _digest(group: TokenGroup) -> str:
    of = repr((group.row, group.prompt_ids, group.responses))
    return hashlib.blake2b(of.encode(), digest_size=16).hexdigest()
