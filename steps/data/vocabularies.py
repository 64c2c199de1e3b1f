"""Whether a model's tokenizer means the same by token ids as the tokenizer that made them.

Ids of another tokenizer may all lie in the model's vocabulary: nothing would fail, and the model
would learn from nonsense. Two tokenizers may differ where it does not matter, for example in the
name of a padding token. So the ids that occur decide.

Two chat templates may write the same ids in different order. A model answers well after the one by
which it was trained, so training hands that on with the model.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.data.rows.parquet import iter_groups, shards

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TOKENIZER = "tokenizer.json"
"""The file beside tokens that decodes their ids, in the format of the library ``tokenizers``."""
TEMPLATE = "chat_template.json"
"""The file beside tokens with the chat template that wrote them; none beside those of texts."""
_BESIDE_VOCABULARY = {"special_tokens_map.json", "added_tokens.json"}
"""Files that make no tokenizer by themselves."""


def save_template(tokenizer: "PreTrainedTokenizerBase", folder: Path) -> None:
    """Write a tokenizer's chat template, or its several by name, beside tokens."""
    described = json.dumps({"chat_template": tokenizer.chat_template}, sort_keys=True)
    (folder / TEMPLATE).write_text(described, "utf-8")


def copy_tokenizer(tokens: Path, copy: Path) -> None:
    """Copy what lies beside tokens of the tokenizer that made them to the folder `copy`."""
    for file in (tokens / TOKENIZER, tokens / TEMPLATE):
        if file.is_file():
            shutil.copyfile(file, copy / file.name)


def has_tokenizer(model: Path) -> bool:
    """Whether a model folder has files of a tokenizer, by their names."""
    names = {file.name.lower() for file in model.iterdir()} - _BESIDE_VOCABULARY
    return any("token" in n or "vocab" in n or n.endswith(".model") for n in names)


def hand_template_on(tokens: Path, model: Path) -> bool:
    """Give a model folder the chat template that wrote `tokens`. Returns whether it had another.
    One without a tokenizer, as a user's own step may write it, gets none."""
    if not (tokens / TEMPLATE).is_file() or not has_tokenizer(model):
        return False
    wrote = json.loads((tokens / TEMPLATE).read_bytes())["chat_template"]
    own, others = model / "chat_template.jinja", model / "additional_chat_templates"
    if own.is_file() and not others.exists() and own.read_text("utf-8") == wrote:
        return False  # without the seconds that loading may take
    tokenizer = _load(model)
    if tokenizer.chat_template == wrote:
        return False
    shutil.rmtree(others, ignore_errors=True)
    tokenizer.chat_template = wrote
    tokenizer.save_chat_templates(model, {}, None, True)
    return True


def require_tokens_of(model: Path, tokens: Path) -> None:
    """Check the ids in the token files of the folder `tokens`, as `require_meaning` does."""
    ids = partial(_ids_in, tokens)
    require_meaning(tokens, model, ids, "tokenise with this model's own tokenizer")


def require_meaning(
    made_by: Path, model: Path, ids: Callable[[], Iterable[int]], remedy: str
) -> None:
    """Check that token ids mean the same in two folders. Where one has no ``tokenizer.json``, there
    is nothing to compare.

    Args:
        made_by: has the tokenizer that made the ids.
        model: a model folder, which is to read the ids.
        ids: called only if the tokenizers differ.
        remedy: what to do about it, for the message.

    Raises:
        ValueError: one of `ids` stands for another text in the model's tokenizer, or for none.
    """
    files = (made_by / TOKENIZER, model / TOKENIZER)
    if not all(file.is_file() for file in files):
        return
    meant, known = map(read_vocabulary, files)
    differing = {i for i, token in meant.items() if known.get(i) != token}
    if not differing or not (wrong := differing.intersection(ids())):
        return
    known = _loaded(model, wrong)  # other files may add tokens to those of tokenizer.json
    if wrong := {i for i in wrong if known[i] != meant[i]}:
        example = min(wrong)
        other = "no token" if known[example] is None else repr(known[example])
        raise ValueError(
            f"the tokens come from another tokenizer than the model's, to which {len(wrong)} of "
            f"the ids mean something else: for example, {example} was {meant[example]!r} and is "
            f"{other}; {remedy}"
        )


def require_whole_vocabulary(model: Path, made_by: Path) -> int | None:
    """Check that every token of the tokenizer in `made_by` has the same id in a model folder, as a
    distribution over all tokens needs. The model may have more tokens.

    Returns the number of ids, or None where one folder has no ``tokenizer.json``. Raises ValueError
    as `require_meaning` does.
    """
    if not (made_by / TOKENIZER).is_file() or not (model / TOKENIZER).is_file():
        return None
    meant = read_vocabulary(made_by / TOKENIZER)
    remedy = "teacher and student must share one vocabulary, so choose another teacher"
    require_meaning(made_by, model, lambda: meant, remedy)
    return max(meant) + 1


def read_vocabulary(file: Path) -> Mapping[int, str]:
    """The token of each id in a ``tokenizer.json``, without the seconds that loading may take."""
    try:
        described = json.loads(file.read_bytes())
        return dict(_tokens(described))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file}: not a tokenizer ({type(error).__name__}: {error})") from error


def _tokens(described: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    vocabulary = described["model"]["vocab"]
    if isinstance(vocabulary, dict):
        yield from ((index, token) for token, index in vocabulary.items())
    else:  # Unigram: pairs of token and score, by id
        yield from ((index, token) for index, (token, _) in enumerate(vocabulary))
    yield from ((added["id"], added["content"]) for added in described.get("added_tokens", ()))


def _loaded(folder: Path, ids: Iterable[int]) -> Mapping[int, str | None]:
    """The token of each of `ids` as transformers loads the folder; None if there is none."""
    tokenizer = _load(folder)
    return {i: tokenizer.convert_ids_to_tokens(i) for i in ids}


def _load(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(
        str(folder), local_files_only=True, trust_remote_code=False
    )


def _ids_in(folder: Path) -> set[int]:
    """The ids that occur in the token files of a folder."""
    import pyarrow.parquet as pq

    found: set[int] = set()
    for shard in shards(folder):  # which may have other columns, as pairs and conversations do
        names = [name for name in pq.read_schema(shard).names if name.endswith("_ids")]
        for table in iter_groups(shard, names):
            chunks = (chunk for column in table.itercolumns() for chunk in column.chunks)
            found.update(i for chunk in chunks for i in chunk.flatten().unique().to_pylist())
    return found
