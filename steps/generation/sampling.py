"""Sample completions of prompts with a model in this process, grouped by row.

The completions of a row depend only on the row's id, the seed and the settings. So several ranks,
each with the whole model on its device, can share the rows.
"""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from steps.data.tokens.rendering import chat_format
from steps.generation.choosing import sample_checked
from steps.generation.config import SamplingConfig
from steps.generation.engine import Finish, Finished, Request, share
from steps.generation.slots import SlotEngine
from steps.models.ranks import ALONE, Ranks
from steps.models.workplace import OnProgress, ignore_progress

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Asked = tuple[str, Sequence[int]]
"""A row's id and its prompt's tokens."""


def sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    asked: Sequence[Asked],
    config: SamplingConfig,
    on_progress: OnProgress = ignore_progress,
    ranks: Ranks = ALONE,
) -> list[list[Finished]]:
    """`config.num_completions` completions of each prompt, in the order of `asked`.

    Decoding settings that a model ships with are ignored, and the caller's random state does not
    change. Progress counts completions. Ranks share the rows, and each gets all completions.

    Raises:
        ValueError: two rows have the same id, or a row is longer than the model's positions.
    """
    requests = make_requests(asked, config, end_tokens(model, tokenizer))
    if not requests:
        return []
    engine = SlotEngine(model, "", config.slots, config.tokens_per_forward)

    def told(done: int) -> None:
        on_progress(min(done * ranks.count, len(requests)), len(requests), {})

    mine = share(requests, ranks.count, ranks.index)
    own, notice = sample_checked(engine, requests, mine, told, ranks)
    if notice is not None and ranks.is_first:
        warnings.warn(notice, stacklevel=2)
    as_plain = [(f.row, f.k, f.ids, f.logps, f.finish) for f in own]
    drawn = {
        (row, k): Finished(row, k, tuple(ids), tuple(logps), Finish(finish), "")
        for of_rank in ranks.gather(as_plain)
        for row, k, ids, logps, finish in of_rank
    }
    return [[drawn[row, k] for k in range(config.num_completions)] for row, _ in asked]


def make_requests(
    asked: Sequence[Asked], config: SamplingConfig, stop_ids: Sequence[int], *seed: int
) -> list[Request]:
    """A request for each completion, grouped by row; `seed` is added to the config's seed.

    Raises:
        ValueError: two rows have the same id, so they would get the same random numbers.
    """
    if len({row for row, _ in asked}) < len(asked):
        raise ValueError("two prompts have one row id, and would get the same draws; rename one")
    return [
        Request(
            row,
            k,
            tuple(ids),
            config.max_new_tokens,
            config.temperature,
            tuple(stop_ids),
            (config.seed, *seed),
            config.top_p,
            config.top_k,
            config.min_p,
        )
        for row, ids in asked
        for k in range(config.num_completions)
    ]


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens that end a completion: the tokenizer's end of sequence, those that the model's
    generation config names, and the one with which the chat template ends an answer. Training on
    conversations teaches the last one, and a base model's files may name others only."""
    named = model.generation_config.eos_token_id if model.generation_config else None
    return sorted({*as_list(named), *as_list(tokenizer.eos_token_id), *_end_of_turn(tokenizer)})


def _end_of_turn(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    if not tokenizer.chat_template or not tokenizer.is_fast:
        return []
    core = cast("Tokenizer", tokenizer.backend_tokenizer)
    return as_list(core.token_to_id(chat_format(tokenizer).last))


def decoded(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], special: bool = False) -> str:
    """The text of tokens by ``tokenizer.json``, with special tokens only if `special` is set. The
    clean-up that some tokenizers' configs ask for would remove spaces before punctuation."""
    core = cast("Tokenizer", tokenizer.backend_tokenizer)
    return core.decode(list(ids), skip_special_tokens=not special)


def as_list(ids: Any) -> list[int]:
    """The token ids that a config names: none, one, or a list of them."""
    return [] if ids is None else [ids] if isinstance(ids, int) else list(ids)
