"""A teacher of an online run, whose examples come into being while it runs.

    FOLDER/teacher-000000.parquet    its distribution in the first iteration, as `cached_teacher`
                                     writes it; at the end it lies beside the rollouts
          /teacher-000000-1.parquet  that of the second teacher, where each teaches some rows

The numbers are read from the files in any case, so a replay, which needs no teacher, has the same.
An example is found by its tokens, so no other one can get its numbers.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from steps.distillation.cached_teacher import Teacher, open_teacher, teacher_in, united
from steps.distillation.config import TeacherConfig
from steps.models.ranks import Ranks
from steps.scoring.examples import TokenGroup, longest
from steps.scoring.parity import rescaled_rotation
from steps.scoring.reference import write_file


@dataclass(frozen=True)
class OnlineTeacher:
    """The teacher in a `folder` of files.

    vocabulary: the number of tokens that its distribution is over.
    source: the folder of the model, or of the recording.
    write: makes the files of an iteration's examples, if they are not there.
    """

    folder: Path
    vocabulary: int
    source: Path
    write: Callable[[int, Sequence[TokenGroup]], None]
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
        named = [replace(group, group_id=_digest(group)) for group in groups]
        self.write(iteration, named)
        teacher = united([teacher_in([file]) for file in files_of(self.folder, iteration)])
        return tuple(teacher.asked(named)), teacher


def files_of(folder: Path, iteration: int) -> list[Path]:
    """The files of a 0-based iteration; none if it has nothing to learn."""
    return sorted(folder.glob(f"teacher-{iteration:06d}*.parquet"))


@dataclass(frozen=True)
class Teachers:
    """Folders of models by name; and for each row that of its teacher, unless there is one model.

    Raises ValueError, which names the row, if it names none of them.
    """

    models: Mapping[str, Path]
    of_row: Mapping[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for row, name in self.of_row.items():
            if name not in self.models:
                named = "no teacher" if name is None else f"the teacher {name!r}"
                there = ", ".join(sorted(self.models)) or "none"
                raise ValueError(
                    f"row {row!r} names {named}, and there are {there}; "
                    "FormatChoice('prompt', {'teacher': COLUMN}) says which column names it"
                )


def live_teacher(
    teachers: Teachers,
    student: Path,
    config: TeacherConfig,
    examples: Sequence[TokenGroup],
    folder: Path,
    ranks: Ranks,
) -> OnlineTeacher:
    """The models in some folders as a teacher; they stay loaded until it is closed.

    Args:
        student: the folder of its student, with the tokenizer.
        examples: examples like those that it will read.

    Raises ValueError if the tokens of one mean something else than the student's, or if what it
    says of a token depends on the tokens after it.
    """
    names = sorted(teachers.models)
    with ExitStack() as opening:
        opened = []
        for name in names:
            opened.append(open_teacher(teachers.models[name], config, ranks, student))
            opening.callback(opened[-1].model.scorer.close)
            _, tokens = longest(examples)
            if why := rescaled_rotation(opened[-1].model.scorer.model, tokens):
                raise ValueError(
                    f"the teacher in {teachers.models[name]} would judge a token by how long the "
                    f"completion becomes: {why}; take another teacher, or a smaller max_new_tokens"
                )
        sizes = {one.vocabulary for one in opened}
        if len(sizes) > 1:
            raise ValueError(
                f"the teachers {', '.join(names)} give {sorted(sizes)} tokens; they must share one "
                "vocabulary"
            )
        forms = [one.make_ready(examples) for one in opened]
        close = opening.pop_all().close

    def write(iteration: int, groups: Sequence[TokenGroup]) -> None:
        for number, (name, one, (form, _)) in enumerate(zip(names, opened, forms, strict=True)):
            own = [group for group in groups if teachers.of_row.get(group.row, name) == name]
            if own:
                stem = f"teacher-{iteration:06d}{f'-{number}' if number else ''}"
                try:
                    write_file(folder / f"{stem}.parquet", one.model, own, form, ranks)
                except FloatingPointError as error:
                    told = f"the teacher in {teachers.models[name]}: {error}"
                    raise FloatingPointError(told) from error

    notices = tuple(notice for _, told in forms for notice in told)
    source = teachers.models[names[0]]
    return OnlineTeacher(folder, opened[0].vocabulary, source, write, close, notices)


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
    return OnlineTeacher(folder, vocabulary, folder, lambda iteration, groups: None)


def _digest(group: TokenGroup) -> str:
    of = repr((group.row, group.prompt_ids, group.responses))
    return hashlib.blake2b(of.encode(), digest_size=16).hexdigest()
