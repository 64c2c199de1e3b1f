"""Completions with a verdict, and texts without turns: from a file to what training reads."""

import json
from pathlib import Path
from typing import Any

import pytest
from chat_families import families
from hypothesis import given
from hypothesis import strategies as st
from step_output import Folder
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from pipeline import File
from steps.data.rows.parquet import read_rows
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import TextRow
from steps.data.tokens.config import LongText, TextConfig, TokenizeConfig, TrainOn
from steps.data.tokens.texts import TokenizedText, text_tokenization, tokenize_texts
from steps.data.tokens.tokenizing import tokens_id
from steps.kinds import Model, Texts, UnpairedSplits
from steps.load_texts import load_texts
from steps.load_unpaired import load_unpaired
from steps.scoring.examples import read_demonstrations
from steps.tokenize_texts import tokenize_texts as tokenize_texts_step
from steps.tokenize_unpaired import tokenize_unpaired


def write(path: Path, records: list[dict[str, Any]]) -> File:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return File(str(path))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("model")
    families()["chatml"].tokenizer.save_pretrained(folder)
    return Model(folder, "import_model", "")


# --- completions with a verdict ------------------------------------------------------------------

THUMBS = [
    {"id": "good", "prompt": "Capital?", "completion": "Paris 🎉", "label": True},
    {"id": "bad", "prompt": "Capital?", "completion": "Rome", "label": False},
    {
        "id": "turns",
        "prompt": [
            {"role": "user", "content": "One?"},
            {"role": "assistant", "content": "1"},
            {"role": "user", "content": "Two?"},
        ],
        "completion": [{"role": "assistant", "content": "2"}],
        "label": True,
    },
    {"id": "no verdict", "prompt": "Capital?", "completion": "Bonn"},
    {"id": "ends early", "prompt": "Capital?", "completion": "Oslo<|im_end|>", "label": True},
]


def unpaired_tokens(folder: Path, model: Model, config: TokenizeConfig) -> tuple[Path, Any]:
    rows, tokens = Folder(folder / "rows"), Folder(folder / "tokens")
    load_unpaired.function(rows, write(folder / "thumbs.jsonl", THUMBS))
    source = UnpairedSplits(rows.path, "load_unpaired", "")
    metrics = tokenize_unpaired.function(tokens, source, model, config)
    return tokens.path, metrics


def test_completions_come_with_masks_verdicts_and_what_became_of_each(
    tmp_path: Path, model: Model
) -> None:
    folder, metrics = unpaired_tokens(tmp_path, model, TokenizeConfig())

    good, bad, turns = read_rows(folder / "train")
    core = families()["chatml"].tokenizer
    assert [row["label"] for row in (good, bad, turns)] == [True, False, True]
    assert str(core.decode(good["prompt_ids"])).endswith("<|im_start|>assistant\n")
    assert core.decode(good["completion_ids"]) == "Paris 🎉<|im_end|>"
    assert all(good["completion_mask"])
    assert not any(good["prompt_mask"] + turns["prompt_mask"])
    assert [turn["content"] for turn in turns["prompt"]] == ["One?", "1", "Two?"]
    assert good["completion_id"] == tokens_id(good["prompt_ids"], good["completion_ids"])
    (entry,) = [e for e in read_rows(folder / "ledger.parquet") if e["outcome"] == "dropped"]
    assert (entry["row"], entry["reason"]) == ("ends early", "end-of-turn inside the response")
    assert metrics["train"] == 3
    assert set(metrics["lengths"]) == {"prompt", "completion", "total"}


def test_earlier_answers_of_a_prompt_are_trained_on_if_all_turns_are(
    tmp_path: Path, model: Model
) -> None:
    folder, _ = unpaired_tokens(tmp_path, model, TokenizeConfig(train_on=TrainOn.all_turns))

    turns = read_rows(folder / "train")[2]
    trained = [i for i, m in zip(turns["prompt_ids"], turns["prompt_mask"], strict=True) if m]
    assert families()["chatml"].tokenizer.decode(trained) == "1<|im_end|>"


def test_a_completion_over_the_limit_is_cut_and_one_without_room_is_dropped(
    tmp_path: Path, model: Model
) -> None:
    folder, _ = unpaired_tokens(tmp_path / "roomy", model, TokenizeConfig())
    good = read_rows(folder / "train")[0]
    config = TokenizeConfig(max_length=len(good["prompt_ids"]) + 2)

    (tmp_path / "cut").mkdir()
    folder, _ = unpaired_tokens(tmp_path / "cut", model, config)

    cut = read_rows(folder / "train")[0]
    assert cut["completion_ids"] == good["completion_ids"][:2]
    outcomes = {e["row"]: e["outcome"] for e in read_rows(folder / "ledger.parquet")}
    assert outcomes["good"] == "truncated"
    assert outcomes["turns"] == "dropped"


# --- texts ---------------------------------------------------------------------------------------


def test_texts_are_rows_that_fine_tuning_reads(tmp_path: Path, model: Model) -> None:
    (tmp_path / "book.txt").write_text("Once upon a time.\n\nThe end.\n")
    rows, tokens = Folder(tmp_path / "rows"), Folder(tmp_path / "tokens")
    load_texts.function(rows, File(str(tmp_path / "book.txt")))

    source = Texts(rows.path / "train", "load_texts", "")
    metrics = tokenize_texts_step.function(tokens, source, model) or {}

    first, last = read_demonstrations(read_rows(tokens.path), vocabulary=10**6)
    assert (first.row, last.row) == ("file:1", "file:3")
    core = families()["chatml"].tokenizer
    (response,) = first.responses
    assert core.decode([*first.prompt_ids, *response.ids]) == "Once upon a time.<|im_end|>"
    assert len(first.prompt_ids) == 1
    assert response.scored is None
    assert metrics["texts"] == 2


LETTERS = {letter: index for index, letter in enumerate(["<unk>", "<s>", "</s>", *"abcdefgh"])}


def letters(**frame: Any) -> PreTrainedTokenizerBase:
    """One token a letter; `frame` is what its post-processor writes around a text."""
    core = Tokenizer(models.WordLevel(LETTERS, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")  # pyright: ignore
    if frame:
        core.post_processor = processors.TemplateProcessing(  # pyright: ignore
            single=frame["single"], special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


FRAMES = {
    "none": letters(),
    "bos": letters(single="<s> $A"),
    "both": letters(single="<s> $A </s>"),
    "eos": letters(single="$A </s>"),
}
NAMES = {index: letter for letter, index in LETTERS.items()}


def made(
    tokenizer: PreTrainedTokenizerBase, text: str, config: TextConfig = TextConfig()
) -> TokenizedText | MalformedRow:
    (result,) = tokenize_texts(text_tokenization(tokenizer, config), [TextRow("doc", text)])
    return result


def spelled(ids: list[int]) -> str:
    return "".join(NAMES[index] for index in ids)


@pytest.mark.parametrize("text", ["abc", "<s>abc", "abc</s>", "<s>abc</s>", "<s><s>abc</s></s>"])
@pytest.mark.parametrize("frame", FRAMES)
def test_a_text_is_framed_as_its_tokenizer_does_and_ends_once(frame: str, text: str) -> None:
    result = made(FRAMES[frame], text)

    assert isinstance(result, TokenizedText)
    (tokens,) = result.pieces
    writes_bos = frame in ("bos", "both")
    own = text.count("<s>") if not writes_bos else 0  # its own, where nothing else writes one
    assert spelled(tokens.ids) == "<s>" * (own or writes_bos) + "abc</s>"
    assert tokens.mask == [False] + [True] * (len(tokens.ids) - 1)


def test_a_text_that_goes_on_after_its_end_is_told() -> None:
    tokenizer = letters()
    rows = [TextRow("1", "ab</s>cd"), TextRow("2", "ab</s>")]

    results = tokenize_texts(text_tokenization(tokenizer), rows)

    found = [result.findings.spelled for result in results if isinstance(result, TokenizedText)]
    assert found == [True, False]


def test_a_frame_of_two_special_tokens_is_not_spelled_by_the_text() -> None:
    """As GLM's, whose tokenizer writes two before each text."""
    tokenizer = letters(single="</s> <s> $A")
    rows = [TextRow("1", "ab"), TextRow("2", "a<s>b"), TextRow("3", "a")]

    results = tokenize_texts(text_tokenization(tokenizer), rows)

    found = [result.findings.spelled for result in results if isinstance(result, TokenizedText)]
    assert found == [False, True, False]


@pytest.mark.parametrize(
    ("policy", "pieces"),
    [
        (LongText.pieces, ["<s>abc", "cdef", "fgh</s>"]),
        (LongText.keep_start, ["<s>abc"]),
        (LongText.keep_end, ["fgh</s>"]),
    ],
)
def test_a_long_text_is_cut_as_the_policy_says(policy: LongText, pieces: list[str]) -> None:
    result = made(FRAMES["bos"], "abcdefgh", TextConfig(max_length=4, too_long=policy))

    assert isinstance(result, TokenizedText)
    assert [spelled(tokens.ids) for tokens in result.pieces] == pieces
    assert result.findings.response_cut == (policy != LongText.pieces)


@given(text=st.text("abcdefgh", min_size=1, max_size=40), limit=st.integers(2, 12))
def test_every_token_but_a_texts_first_is_trained_on_once(text: str, limit: int) -> None:
    whole = made(FRAMES["bos"], text, TextConfig(max_length=1000))
    result = made(FRAMES["bos"], text, TextConfig(max_length=limit))

    assert isinstance(whole, TokenizedText)
    assert isinstance(result, TokenizedText)
    trained = [
        index
        for tokens in result.pieces
        for index, trained in zip(tokens.ids, tokens.mask, strict=True)
        if trained
    ]
    assert trained == whole.pieces[0].ids[1:]
    assert all(2 <= len(tokens) <= limit for tokens in result.pieces)
    names = [name for name, _ in result.named_pieces()]
    assert names == (["doc"] if len(names) == 1 else [f"doc#{n + 1}" for n in range(len(names))])
