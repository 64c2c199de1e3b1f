"""Sample rollouts. Finished completions are stored, and a killed run resumes.

    SCRATCH/parts/finished-RANK-NUMBER.parquet    completions, as they finish

A completion depends only on its request. So a resumed run samples only the missing completions, on
any number of ranks, and the recording is the same bit for bit.
"""

import json
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from steps.checking.judges import Judges
from steps.data.rows.ledger import Entry, Tally
from steps.data.rows.parquet import read_rows, write_rows
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import PromptRow
from steps.data.rows.tables import PROMPTS, from_record, to_record
from steps.data.tokens.encoding import save_tokenizer
from steps.data.tokens.rendering import Chat, load_tokenizer
from steps.data.tokens.tokenizing import tokenization, tokenize_prompts
from steps.generation.choosing import EngineChoice
from steps.generation.config import WHOLE, SamplingConfig, require_whole
from steps.generation.engine import Converses, Engine, Finish, Place, Request, share
from steps.generation.engine_config import EngineConfig, OwnEngine
from steps.generation.sampling import end_tokens, make_requests
from steps.models.config import Dtype
from steps.models.folders import load_model, vocabulary_size
from steps.models.workplace import Left, Workplace
from steps.online.episodes import World
from steps.online.rollouts import (
    Rollout,
    as_rollout,
    of_all,
    read_rollouts,
    write_rollout_file,
    write_rollouts,
)
from steps.scoring.scored_by import model_digest

_ENGINE = "engine.json"
_SECONDS_A_PART = 20.0
"""The most seconds of a rank's work that a kill can lose."""


@dataclass(frozen=True)
class Drawn:
    """Rollouts, the rows that they answer, and how they were sampled.

    rollouts: in the order of `rows`, and for each row by number.
    tally: which prompts were kept and which dropped.
    drawing: the settings that change the policy's distribution, as `WHOLE` has them.
    """

    rows: Sequence[PromptRow]
    rollouts: Sequence[Rollout]
    tokenizer: PreTrainedTokenizerBase
    tally: Tally
    choice: EngineChoice
    drawing: Mapping[str, float]

    def metrics(self) -> dict[str, Any]:
        """Counts, and what people should be told."""
        tokens = sum(sum(rollout.scored) for rollout in self.rollouts)
        replied = [rollout for rollout in self.rollouts if not all(rollout.scored)]
        read = sum(len(rollout.ids) for rollout in replied) - sum(sum(r.scored) for r in replied)
        told = self.tally.metrics()
        notices = [*told.get("notices", ()), *filter(None, [self.choice.notice])]
        return {
            "prompts": len(self.rows),
            "completions": len(self.rollouts),
            "cut": sum(rollout.is_cut for rollout in self.rollouts),
            "tokens": tokens,
            "tokens_per_completion": tokens / len(self.rollouts),
            **({"replied_to": len(replied), "tokens_of_replies": read} if replied else {}),
            **told,
            **({"notices": notices} if notices else {}),
        }


def draw_rollouts(
    prompts: Path,
    model: Path,
    config: SamplingConfig,
    dtype: Dtype,
    place: Workplace,
    engine: EngineConfig = OwnEngine(),
    environment: Judges | None = None,
) -> Drawn:
    """Sample completions of the prompts in a folder with the model in another; every rank gets all.

    A prompt that is too long, or that the model's chat template refuses, is left out, and a notice
    names it.

    Args:
        environment: processes that reply to turns, where completions are episodes.

    Raises:
        ValueError: as `tokenized`, or an engine elsewhere is not what it should be.
        EngineError: an engine elsewhere fails; what is finished is kept.
        Left: the run was told to leave; what is finished is kept.
    """
    tokenizer = load_tokenizer(model)
    rows, prompt_ids, tally = tokenized(prompts, tokenizer, config.max_prompt_length)
    loaded = load_model(model, dtype)
    asked = [(row.row, ids) for row, ids in zip(rows, prompt_ids, strict=True)]
    require_ids(asked, vocabulary_size(loaded))
    requests = make_requests(asked, config, end_tokens(loaded, tokenizer))
    weights = model_digest(model)
    choice = engine.connect(loaded, requests, weights, config.slots, config.tokens_per_forward)
    if len(set(place.ranks.gather(choice.name))) > 1:
        raise ValueError("the model takes slots on some ranks only; sample with one process")
    if choice.notice and place.ranks.is_first:
        warnings.warn(choice.notice, stacklevel=2)
    world = environment and World(environment, {row.row: row for row in rows}, tokenizer)
    rollouts = record(choice.engine, requests, place, world)
    drawing = {name: getattr(config, name) for name in WHOLE}
    return Drawn(rows, rollouts, tokenizer, tally, choice, drawing)


def write_recording(folder: Path, drawn: Drawn, model: Path) -> None:
    """The files of a `Rollouts` artifact, from what `draw_rollouts` drew with `model`."""
    write_rollouts(folder, drawn.rollouts)
    write_rows(folder / "prompts-00000.parquet", PROMPTS, map(to_record, drawn.rows))
    save_tokenizer(model, folder)
    told = {**drawn.choice.described(), **drawn.drawing}
    (folder / _ENGINE).write_text(json.dumps(told, indent=1) + "\n")


def require_whole_distribution(folder: Path) -> None:
    """Raise ValueError unless a recording was sampled from the policy's own distribution. In those
    of other tools null, and a top_k of -1 (vLLM), leave out no token."""
    file = folder / _ENGINE
    told = json.loads(file.read_text()) if file.is_file() else {}
    told = {name: value for name, value in told.items() if value is not None}
    require_whole(told if told.get("top_k") != -1 else told | {"top_k": 0}, str(file))


def require_ids(rows: Iterable[tuple[str, Sequence[int]]], vocabulary: int) -> None:
    """Raise ValueError, which names the row, for ids beyond the vocabulary of a model."""
    for row, ids in rows:
        if ids and not 0 <= min(ids) <= max(ids) < vocabulary:
            raise ValueError(
                f"row {row!r} has the token ids {min(ids)} to {max(ids)}, and those of the model "
                f"are 0 to {vocabulary - 1}; use the tokenizer and the rollouts of this model"
            )


def record(
    engine: Engine,
    requests: Sequence[Request],
    place: Workplace,
    world: World | None = None,
    iteration: int = 0,
) -> list[Rollout]:
    """What `engine` gives to `requests`, in their order, without what is in scratch already.

    Several ranks, each with an engine, share the rows, and each gets all rollouts.

    Args:
        world: where completions are episodes, what they are played in; they get its verdicts.

    Raises:
        Left: a rank was told to leave; what is finished is kept, as it is if the engine fails.
    """
    ranks = place.ranks
    asked = {(request.row, request.k): request for request in requests}
    weights = engine.weights
    own = _kept(place.scratch, asked, weights)
    done = {(row, k) for of_rank in ranks.gather(list(own)) for row, k in of_rank}
    missing = [r for r in share(requests, ranks.count, ranks.index) if (r.row, r.k) not in done]
    parts = _Parts(place)
    leaving = False
    try:
        for rollout in _drawn(engine, missing, weights, world, iteration):
            own[rollout.row, rollout.k] = rollout
            leaving = place.stopping() and parts.count + 1 < len(missing)
            parts.add(rollout, at_once=leaving)
            reached = min(len(done) + parts.count * ranks.count, len(asked))
            place.on_progress(reached, len(asked), {})
            if leaving:
                break
    except Exception:  # an engine elsewhere may fail at any time
        parts.write()
        raise
    if ranks.any(leaving)[0]:
        raise Left("left while sampling; the completions that are finished are kept")
    every = {(rollout.row, rollout.k): rollout for rollout in of_all(ranks, own.values())}
    return [every[answered] for answered in asked]


def _drawn(
    engine: Engine,
    requests: Sequence[Request],
    weights: str,
    world: World | None,
    iteration: int,
) -> Iterator[Rollout]:
    """What an engine gives to requests, as it ends."""
    asked = {(request.row, request.k): request for request in requests}
    if world is None:
        for finished in engine.sample(requests, weights):
            yield as_rollout(asked[finished.row, finished.k], finished, iteration)
        return
    if not isinstance(engine, Converses):
        raise ValueError(
            f"{type(engine).__name__} does not wait for replies in the middle of a completion; "
            "sample without an environment, or with an engine of this process"
        )
    episodes = world.episodes()
    try:
        for finished in engine.converse(requests, weights, episodes):
            rollout = as_rollout(asked[finished.row, finished.k], finished, iteration)
            yield episodes.of(rollout)
    finally:
        episodes.close()


class _Parts:
    """Writes finished completions to files at intervals."""

    def __init__(self, place: Workplace) -> None:
        self.count = 0
        self._folder = place.scratch / "parts"
        self._rank = place.ranks.index
        self._pending: list[Rollout] = []
        self._written = time.monotonic()

    def add(self, rollout: Rollout, at_once: bool) -> None:
        self.count += 1
        self._pending.append(rollout)
        if at_once or time.monotonic() - self._written >= _SECONDS_A_PART:
            self.write()

    def write(self) -> None:
        """Keeps what is finished."""
        if not self._pending:
            return
        number = len(list(self._folder.glob(f"finished-{self._rank:05d}-*")))
        file = self._folder / f"finished-{self._rank:05d}-{number:05d}.parquet"
        write_rollout_file(file, self._pending)
        self._pending = []
        self._written = time.monotonic()


def _kept(scratch: Path, asked: Mapping[Place, Request], weights: str) -> dict[Place, Rollout]:
    """The completions that earlier attempts have finished, if they answer `asked`. An unreadable
    file is ignored, and its completions are sampled again, as are episodes that failed."""
    found = {}
    for file in sorted((scratch / "parts").glob("finished-*.parquet")):
        try:
            rollouts = list(read_rollouts(file))
        except ValueError:
            continue
        for rollout in rollouts:
            request = asked.get((rollout.row, rollout.k))
            if request is None or rollout.finish is Finish.error:
                continue
            if (rollout.prompt_ids, rollout.weights) == (request.prompt_ids, weights):
                found[rollout.row, rollout.k] = rollout
    return found


def tokenized(
    prompts: Path, tokenizer: PreTrainedTokenizerBase, most: int | None
) -> tuple[list[PromptRow], list[list[int]], Tally]:
    """The prompts of a folder that the chat template accepts and that have at most `most` tokens,
    their tokens, and a tally of all.

    Raises ValueError if two rows have one id, as they would get the same draws, or if no row is
    left.
    """
    rows = [from_record(PromptRow, record) for record in read_rows(prompts)]
    row, count = Counter(row.row for row in rows).most_common(1)[0] if rows else ("", 0)
    if count > 1:
        raise ValueError(
            f"{count} prompts in {prompts} have the row id {row!r}, and would get the same draws; "
            "give each row an id of its own"
        )
    chats = [Chat(row.prompt, row.tools, row.template_kwargs) for row in rows]
    kept: list[tuple[PromptRow, list[int]]] = []
    tally = Tally()
    for row, ids in zip(rows, tokenize_prompts(tokenization(tokenizer), chats), strict=True):
        if not isinstance(ids, MalformedRow) and most is not None and len(ids) > most:
            what = f"{len(ids)} tokens, over max_prompt_length={most}"
            ids = MalformedRow("prompt too long", what)
        if isinstance(ids, MalformedRow):
            tally.add(Entry.dropped("", "", row.row, ids))
        else:
            kept.append((row, ids))
            tally.add(Entry("", "", row.row, "kept"))
    if not kept:
        why = f": {tally.worst_reasons()}" if rows else ""
        raise ValueError(f"{prompts} has no prompt to answer{why}")
    return [row for row, _ in kept], [ids for _, ids in kept], tally
