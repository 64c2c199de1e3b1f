"""How reports show each kind of artifact, and how a model is loaded.

The kinds in :mod:`steps.kinds` name these functions."""

import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, islice, pairwise
from pathlib import Path
from typing import Any

from pipeline.show.artifact_handle import Made
from pipeline.show.views import (
    Curves,
    Histogram,
    Measure,
    Measures,
    Table,
    Text,
    Texts,
    View,
    curves,
    lines_of,
    loaded_by,
    offered_if,
    summary,
)

TRAINING_CURVES = (
    "loss",
    "mean_token_accuracy",
    "rewards/margins",
    "rewards/accuracies",
    "rewards/chosen",
    "rewards/rejected",
    "grad_norm",
)
"""The metrics of a training run that reports show first, by TRL's names."""
ONLINE_CURVES = {
    "reward": "reward",
    "reward_std": "spread of rewards among a prompt's completions (reward_std)",
    "frac_reward_zero_std": "share of prompts without signal (frac_reward_zero_std)",
    "entropy": "entropy of what was drawn, nats a token (entropy)",
    "kl/k3": "KL from the reference, nats a token (kl/k3)",
    "teacher/reverse_kl": "KL from the teacher, nats a token (teacher/reverse_kl)",
    "ratio/deviation": "distance of the ratio from 1 (ratio/deviation)",
    "clip_ratio/high_mean": "share clipped above (clip_ratio/high_mean)",
    "clip_ratio/low_mean": "share clipped below (clip_ratio/low_mean)",
    "completions/mean_length": "length in tokens (completions/mean_length)",
    "completions/mean_turns": "turns of an episode (completions/mean_turns)",
    "completions/clipped_ratio": "share cut at the limit (completions/clipped_ratio)",
    "mismatch/k3": "mismatch of sampler and trainer, nats a token (mismatch/k3)",
    "loss": "loss",
    "grad_norm": "grad_norm",
}
"""The metrics of an online run that reports show first, by TRL's names, with their titles."""
PREFERENCE = (
    Measure("gain/logps/accuracies", "pairs ranked right", "Gain over the baseline", True, 1,
            "eval_logps/accuracies", "gain/logps/accuracies/p"),
    Measure("gain/logps/margins", "log-probability margin, nats", "Gain over the baseline",
            False, 1, p="gain/logps/margins/p"),
    Measure("eval_logps/accuracies", "pairs ranked right", "Preference", True, 1),
    Measure("eval_rewards/accuracies", "pairs rewarded right", "Preference", True, 1),
    Measure("eval_rewards/accuracies_at_equal_length", "pairs rewarded right at equal length",
            "Preference", True, 1),
    Measure("eval_rewards/calibration_error", "calibration error", "Preference", True, -1),
    Measure("eval_rewards/margins", "reward margin", "Preference", False, 1),
    Measure("eval_loss", "loss", "Preference", False, -1),
    Measure("sampled/ended", "answers that ended before the limit", "Sampled answers", True),
    Measure("sampled/tokens", "tokens of an answer", "Sampled answers", False),
    Measure("sampled/repetition", "repeated 4-grams of an answer", "Sampled answers", True),
    Measure("sampled/kl_per_token", "KL from the baseline, nats a token", "Sampled answers", False),
)  # fmt: skip
"""The metrics of an evaluation. :func:`_measures_of_answers` adds one for each check of answers."""
REWARD = (
    Measure("pairs/accuracy", "pairs ranked right", "Held-out pairs", True, 1),
    Measure("pairs/accuracy_at_equal_length", "pairs ranked right at equal length",
            "Held-out pairs", True, 1),
    Measure("pairs/calibration_error", "calibration error", "Held-out pairs", True, -1),
    Measure("pairs/margin", "score margin", "Held-out pairs", False, 1),
    Measure("pairs/loss", "loss", "Held-out pairs", False, -1),
    Measure("one_right_of_four", "right answer above three wrong ones", "Answers", True, 1),
)  # fmt: skip
"""The metrics of a reward model. :func:`_measures_of_best` adds those of the best of n."""
EXACT_MATCH = (
    Measure("exact_match", "exact match", "Answers", True, 1),
    Measure("well_formed", "answers that state a result", "Answers", True, 1),
)
WIN_RATE = (Measure("win_rate", "wins over the other model", "Comparison", True, 1),)
DISTRIBUTIONS = (
    Measure("agreement", "first guesses that agree", "Student and teacher", True, 1),
    Measure("forward_kl", "KL(teacher ‖ student), nats a token", "Student and teacher", False, -1),
    Measure("reverse_kl", "KL(student ‖ teacher), nats a token", "Student and teacher", False, -1),
    Measure("student_entropy", "entropy of the student, nats a token", "Student and teacher"),
    Measure("teacher_entropy", "entropy of the teacher, nats a token", "Student and teacher"),
    Measure("shared_mass", "teacher's mass on tokens that both keep", "Student and teacher",
            True),
)  # fmt: skip
"""How far a student's distribution is from a teacher's, as a mean and by position."""
MEASURES = (*PREFERENCE, *REWARD, *EXACT_MATCH, *WIN_RATE, *DISTRIBUTIONS)
"""The metrics to which terminal and report give titles."""
MOST_TEXTS = 40
MOST_PROMPTS_OVER_ITERATIONS = 20
MOST_ITERATIONS_OF_A_PROMPT = 6
MOST_TOKEN_FILES = 8
PICKERS = ("reward_model", "majority", "checker")
"""Who picks the best of n."""
CALIBRATION, BEST_OF_N = "calibration.jsonl", "best_of_n.jsonl"
_PER_ITERATION = (
    "iteration", "row", "k", "prompt_ids", "ids", "scored", "finish", "verdict", "rewards",
)  # fmt: skip
_REPLIED = "◄ "
"""Before what a policy read in the middle of its completion, and did not draw."""
_PREDICTED = "predicted probability of being right"


def open_model(folder: Path) -> tuple[Any, Any]:
    """The model of a Hugging Face folder, in the dtype of its weights file, and its tokenizer."""
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    from steps.models.folders import language_model_of

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    scores = any("SequenceClassification" in name for name in config.architectures or ())
    auto: Any = AutoModelForSequenceClassification if scores else language_model_of(config)
    model = auto.from_pretrained(folder, dtype="auto", local_files_only=True)
    return model, AutoTokenizer.from_pretrained(folder, local_files_only=True)


def answers_texts(made: Made) -> bool:
    """Whether ``temper chat`` takes a model: one with all its weights, which neither reads images
    nor gives scores."""
    config = json.loads(made.read("config.json") or "null")
    if not isinstance(config, dict) or "vision_config" in config:
        return False
    return not any("SequenceClassification" in name for name in config.get("architectures") or ())


@offered_if(answers_texts)
@loaded_by(open_model)
def model(made: Made) -> Iterator[View]:
    """The training curves of a model and its summary, if it was trained."""
    yield from curves(made, TRAINING_CURVES)
    yield from summary(made)


def evaluation(made: Made) -> Iterator[View]:
    """The metrics and answers of a model, and the calibration of its reward margins."""
    yield Measures([*PREFERENCE, *_measures_of_answers(made.manifest.metrics)], "baseline")
    answers = made.records("answers.jsonl")[:MOST_TEXTS]
    if answers:
        rows = [
            Text(str(a.get("row")), str(a.get("prompt")), str(a.get("answer")), checks=_checks(a))
            for a in answers
        ]
        yield Texts("Held-out prompts", rows)
    yield from _calibration(made, "Calibration of the implicit reward")


def scores(made: Made) -> Iterator[View]:
    """How often completions are right, and the completions."""
    yield Measures(EXACT_MATCH)
    records = made.records("scores.jsonl")
    rows = [
        Text(str(r.get("row")), f"expected: {r.get('answer')}", str(r.get("completion")),
             "cut at the limit" if r.get("cut") else "", {"exact match": r.get("right") is True})
        for r in records[:MOST_TEXTS]
    ]  # fmt: skip
    if rows:
        yield Texts("Judged completions", rows)


def comparisons(made: Made) -> Iterator[View]:
    """How often a model's answers are better, and the answers with what the judge says."""
    yield Measures(WIN_RATE)
    texts = [
        Text(f"{r.get('row')}: {r.get('outcome')}", _last_message(r.get("prompt")), _compared(r))
        for r in made.records("comparisons.jsonl")[:MOST_TEXTS]
    ]
    if texts:
        yield Texts("Compared answers", texts)


def distributions(made: Made) -> Iterator[View]:
    """How far a student is from a teacher, in all and over the positions of an answer."""
    yield Measures(DISTRIBUTIONS)
    titles = {measure.metric: measure.title for measure in DISTRIBUTIONS}
    titles["tokens"] = "rows of this length or longer"
    lines = lines_of(made.records("positions.jsonl"), list(titles), "position")
    named = {titles[name]: points for name, points in lines.items() if name in titles}
    yield Curves("Student and teacher by position", "scored token of a row", named, note=(
        "KLs and entropies are lower bounds: the tokens that a model does not keep are one bucket. "
        "At late positions a mean is of few tokens."))  # fmt: skip


def _compared(record: Mapping[str, Any]) -> str:
    verdicts = record.get("verdicts")
    reasons = [str(v.get("reason")) for v in verdicts] if isinstance(verdicts, list) else []
    names = ("shown first", "shown second")
    said = [f"judge, {place}: {reason}" for place, reason in zip(names, reasons, strict=False)]
    answers = [f"model: {record.get('text')}", f"beside: {record.get('beside')}"]
    return "\n\n".join([*answers, *said])


def online(made: Made) -> Iterator[View]:
    """The curves of an online run over its iterations, and completions from the iterations."""
    yield from curves(made, list(ONLINE_CURVES), titles=ONLINE_CURVES, unit="iteration")
    if texts := _over_iterations(made):
        yield Texts("Completions over iterations", texts)
    yield from rollouts(made)
    yield from summary(made)


def reward_evaluation(made: Made) -> Iterator[View]:
    """The best-of-n curve for each way of picking, and the calibration of the scores."""
    curve = made.records(BEST_OF_N)
    yield Measures([*REWARD, *_measures_of_best(curve)])
    if curve:
        points = {
            picker.replace("_", " "): [(p["n"], p[picker]["value"]) for p in curve]
            for picker in PICKERS
        }
        yield Curves("Best of n", "samples", points, section="Results")
    yield from _calibration(made, "Calibration of the scores")


def benchmark(made: Made) -> Iterator[View]:
    """The first questions of each task, as the model saw them, with the model's answers."""
    tasks: dict[str, list[Text]] = {}
    for record in made.records("answers.jsonl"):
        row = str(record.get("row"))
        texts = tasks.setdefault(row.rpartition(":")[0], [])
        if len(texts) < MOST_TEXTS:
            texts.append(Text(row, str(record.get("prompt")), str(record.get("answer"))))
    for task, texts in tasks.items():
        yield Texts(task, texts)


def influences(made: Made) -> Iterator[View]:
    """The pairs that pull hardest against the held-out ones, and for them."""
    found = [
        (str(r.get("row")), str(r.get("pair")), value)
        for r in made.records("influences.jsonl")
        if isinstance(value := r.get("influence"), float)
    ]
    found.sort(key=lambda row: row[2])
    headings = ("row", "pair", "a step on it lowers the held-out loss by")
    if against := [row for row in found[:MOST_TEXTS] if row[2] < 0]:
        yield Table("Pairs that pull hardest against", headings, against)
    if towards := [row for row in reversed(found[-MOST_TEXTS:]) if row[2] > 0]:
        yield Table("Pairs that pull hardest for", headings, towards)


def completions(made: Made) -> Iterator[View]:
    """The first answer to each of the first prompts."""
    texts = [
        Text(str(record.get("row")), _last_message(record.get("prompt")), str(answers[0]))
        for record in made.records("completions.jsonl")
        if isinstance(answers := record.get("completions"), list) and answers
    ]
    if texts:
        yield Texts("Sampled prompts", texts[:MOST_TEXTS])


def rollouts(made: Made) -> Iterator[View]:
    """The lengths of completions, and the counts of their verdicts."""
    lengths: dict[str, Counter[int]] = {}
    verdicts = Counter[str]()
    for record in _records(made, "*rollouts-*.parquet", ["ids", "finish", "verdict"]):
        lengths.setdefault(record["finish"], Counter())[len(record["ids"])] += 1
        verdicts[record["verdict"] or "not judged"] += 1
    if lengths:
        yield Histogram("Lengths of completions, by how they ended", "tokens", lengths)
        yield Table("Verdicts", ["verdict", "completions"], [*map(list, verdicts.most_common())])
    if texts := _episodes(made):
        yield Texts("Episodes", texts)


def rows(made: Made) -> Iterator[View]:
    """How many rows were kept or dropped, by split and reason."""
    yield from _ledger(made)


def tokens(made: Made) -> Iterator[View]:
    """How many rows were kept or dropped, and the lengths of the token sequences."""
    yield from _ledger(made)
    yield from _lengths(made)


def _checks(answer: Mapping[str, Any]) -> dict[str, bool]:
    """For each check, whether an answer passes it."""
    checks = answer.get("checks")
    marks = checks.items() if isinstance(checks, Mapping) else ()
    return {str(name): passed is True for name, passed in marks}


def _measures_of_answers(metrics: Mapping[str, Any]) -> Iterator[Measure]:
    """The share of answers that pass each check, and its gain over the baseline."""
    names = [name.removeprefix("answers/") for name in metrics if name.startswith("answers/")]
    for name in names:
        yield Measure(f"gain/answers/{name}", f"answers: {name}", "Gain over the baseline", True, 0,
                      f"answers/{name}", f"gain/answers/{name}/p")  # fmt: skip
    for name in names:
        yield Measure(f"answers/{name}", name, "Share of answers that pass a check", True)


def _measures_of_best(curve: Sequence[Mapping[str, Any]]) -> Iterator[Measure]:
    """How often the best of n samples is right, by who picks it; the checker is the upper bound."""
    for point in curve:
        for picker in PICKERS:
            title = f"best of {point.get('n')}: {picker.replace('_', ' ')}"
            better = 1 if picker == "reward_model" else 0
            yield Measure(f"best_of_{point.get('n')}/{picker}", title, "Answers", True, better)


def _calibration(made: Made, title: str) -> Iterator[View]:
    if bins := made.records(CALIBRATION):
        points = {"share of pairs that are right": [(b["predicted"], b["observed"]) for b in bins]}
        note = "On the dashed line, predictions are as often right as they say."
        yield Curves(title, _PREDICTED, points, 1, diagonal=True, section="Results", note=note)


def _over_iterations(made: Made) -> list[Text]:
    """The first completions of the prompts that occur in most iterations, by iteration. The list
    is empty if the artifact has no rollouts."""
    from tokenizers import Tokenizer

    if (tokenizer := made.text("rollouts/tokenizer.json")) is None:
        return []
    decode = Tokenizer.from_str(tokenizer).decode
    of_rows: dict[str, list[Mapping[str, Any]]] = {}
    for record in _drawn(made):
        of_rows.setdefault(record["row"], []).append(record)
    often = sorted(of_rows.values(), key=len, reverse=True)[:MOST_PROMPTS_OVER_ITERATIONS]
    return [
        _completion(record, decode, f"iteration {record['iteration'] + 1}")
        for records in often
        for record in _spread(records, MOST_ITERATIONS_OF_A_PROMPT)
    ]


def _episodes(made: Made) -> list[Text]:
    """The first completion of the first prompts, if any was replied to."""
    from tokenizers import Tokenizer

    if (tokenizer := made.text("tokenizer.json")) is None:
        return []
    decode = Tokenizer.from_str(tokenizer).decode
    records = list(islice(_drawn(made, ""), MOST_TEXTS))
    if all(all(record["scored"]) for record in records):
        return []
    return [_completion(record, decode) for record in records]


def _completion(
    record: Mapping[str, Any], decode: Callable[[list[int]], str], by: str = ""
) -> Text:
    return Text(
        record["row"],
        decode(record["prompt_ids"]),
        _by_speaker(record, decode),
        ", ".join(_remarks(record)),
        {"right": record["verdict"] == "right"} if record["verdict"] else {},
        by,
    )


def _by_speaker(record: Mapping[str, Any], decode: Callable[[list[int]], str]) -> str:
    """What a completion says; where it was replied to, a line a turn and a line a reply."""
    parts = [
        (drawn, decode([token for token, _ in tokens]))
        for drawn, tokens in groupby(
            zip(record["ids"], record["scored"], strict=True), lambda token: token[1]
        )
    ]
    if len(parts) == 1:
        return parts[0][1]
    return "\n".join(f"{'' if drawn else _REPLIED}{text.strip()}" for drawn, text in parts)


def _drawn(made: Made, folder: str = "rollouts/") -> Iterator[Mapping[str, Any]]:
    """The first completion of every prompt and iteration."""
    first = [("k", "=", 0)]
    return _records(made, f"{folder}rollouts-*.parquet", _PER_ITERATION, filters=first)


def _records(
    made: Made, pattern: str, columns: Sequence[str], filters: Any = None
) -> Iterator[Mapping[str, Any]]:
    """The records of the first ``MOST_TOKEN_FILES`` Parquet files whose names match a pattern."""
    import pyarrow.parquet as pq

    for file in made.names(pattern)[:MOST_TOKEN_FILES]:
        if (data := made.read(file)) is not None:
            table = pq.read_table(io.BytesIO(data), columns=[*columns], filters=filters)
            yield from table.to_pylist()


def _remarks(record: Mapping[str, Any]) -> Iterator[str]:
    """The reward of a completion, and its finish reason if it did not stop by itself."""
    if record["rewards"]:
        yield f"reward {sum(value for _, value in record['rewards']):.3g}"
    if record["finish"] != "stop":
        yield f"ended by {record['finish']}"


def _spread(records: Sequence[Mapping[str, Any]], most: int) -> Sequence[Mapping[str, Any]]:
    """At most ``most`` evenly spaced records, including the first and the last."""
    if len(records) <= most:
        return records
    return [records[round(i * (len(records) - 1) / (most - 1))] for i in range(most)]


def _ledger(made: Made) -> Iterator[View]:
    counts, first = Counter[tuple[str, ...]](), dict[tuple[str, ...], str]()
    for row in _records(made, "ledger.parquet", ["split", "outcome", "reason", "row"]):
        what = (row["split"], row["outcome"], row["reason"] or "")
        counts[what] += 1
        first.setdefault(what, row["row"])
    if table := [[*what, count, first[what]] for what, count in sorted(counts.items())]:
        headings = ["split", "outcome", "reason", "rows", "e.g."]
        yield Table("What became of the rows", headings, table)


def _lengths(made: Made) -> Iterator[View]:
    """A histogram of sequence lengths for each split and column of token ids. Only the first
    ``MOST_TOKEN_FILES`` files are read."""
    import pyarrow.parquet as pq

    counts: dict[str, Counter[int]] = {}
    files = made.names("*tokens-*.parquet")[:MOST_TOKEN_FILES]
    for file in files:
        data = made.read(file)
        if data is None:
            continue
        source = pq.ParquetFile(io.BytesIO(data))
        split = file.rpartition("/")[0] or "all"
        for column in [n for n in source.schema_arrow.names if n.endswith("_ids")]:
            lists = source.read([column])[column].chunks
            lengths = (
                end - start for ids in lists for start, end in pairwise(ids.offsets.to_pylist())
            )
            counts.setdefault(f"{split}: {column.removesuffix('_ids')}", Counter()).update(lengths)
    if counts:
        yield Histogram("Lengths in tokens", "tokens", counts)


def _last_message(prompt: object) -> str:
    """The last message of a conversation, or the prompt itself if it is a text."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[-1], dict):
        return str(prompt[-1].get("content"))
    return str(prompt)
