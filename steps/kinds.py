"""The kinds of artifacts that steps take and make."""

from pipeline import Artifact


class Model(Artifact):
    """A Hugging Face model folder: safetensors, config, tokenizer, chat template.

    Training can write snapshots, which are its parts: ``model["step-200"]``. One that was trained
    with adapters has these in place of weights, and ``adapted.json``, which
    names the model on which it rests. Steps and commands get it whole.
    """

    views = "steps.views:model"
    assemble = "steps.models.adapted:assemble"


Model.parts = Model


class Tokens(Artifact):
    """Rows as token ids with masks, with the ledger and ``tokenizer.json`` of the tokenization."""

    viewer = "steps.data.row_view:show_row"


class Preferences(Artifact):
    """``SPLIT/pairs-*.parquet``: prompts with a chosen and a rejected continuation, as text."""

    views = "steps.views:rows"


class PairTokens(Tokens):
    """``tokens-00000.parquet`` and so on: preference pairs as token ids with masks."""

    views = "steps.views:tokens"


class TokenizedPreferences(Tokens):
    """:class:`PairTokens` for every split."""

    views = "steps.views:tokens"
    parts = PairTokens


class Conversations(Artifact):
    """``conversations-*.parquet``: conversations to learn from, as text."""

    views = "steps.views:rows"


class ConversationSplits(Artifact):
    """:class:`Conversations` for every split, and ``ledger.parquet``."""

    views = "steps.views:rows"
    parts = Conversations


class ConversationTokens(Tokens):
    """``tokens-00000.parquet`` and so on: conversations as token ids with masks."""

    views = "steps.views:tokens"


class Texts(Artifact):
    """``texts-*.parquet``: plain texts to learn from."""


class TextSplits(Artifact):
    """:class:`Texts` for every split, and ``ledger.parquet``."""

    parts = Texts


class TextTokens(ConversationTokens):
    """``tokens-00000.parquet`` and so on: texts as token ids. Steps take them as conversations."""


class Unpaired(Artifact):
    """``completions-*.parquet``: prompts with one completion each and its label, good or bad."""


class UnpairedSplits(Artifact):
    """:class:`Unpaired` for every split, and ``ledger.parquet``."""

    parts = Unpaired


class UnpairedTokens(Tokens):
    """``tokens-00000.parquet`` and so on: completions as token ids with masks and labels."""


class TokenizedUnpaired(Tokens):
    """:class:`UnpairedTokens` for every split."""

    parts = UnpairedTokens


class ReferenceLogps(Artifact):
    """``logps-00000.parquet`` and so on: a reference model's log-probabilities of responses."""


class TeacherLogps(Artifact):
    """``teacher-00000.parquet`` and so on: a teacher's distribution at each scored token."""


class ComparedDistributions(Artifact):
    """``positions.jsonl``: how far a student's distribution is from a teacher's, by position."""

    views = "steps.views:distributions"


class Evaluation(Artifact):
    """``logps-*.parquet``, ``answers.jsonl`` and ``metrics.json`` of a model on held-out pairs."""

    views = "steps.views:evaluation"


class Prompts(Artifact):
    """``prompts-*.parquet``: prompts, with the right answer if it is known."""


class PromptSplits(Artifact):
    """:class:`Prompts` for every split, and ``ledger.parquet``."""

    views = "steps.views:rows"
    parts = Prompts


class VerifiableTask(Artifact):
    """Demonstrations, and prompts with known answers for training and testing."""

    parts = {"sft": Conversations, "train": Prompts, "test": Prompts}  # noqa: RUF012


class Completions(Artifact):
    """``completions.jsonl``: a model's completions of :class:`Prompts`, as text."""

    views = "steps.views:completions"


class Rollouts(Artifact):
    """``rollouts-*.parquet``: a policy's completions as token ids, with logps and finish reasons;
    beside them ``prompts-*.parquet``, ``tokenizer.json``, ``chat_template.json`` and
    ``engine.json``."""

    views = "steps.views:rollouts"


class Judged(Rollouts):
    """:class:`Rollouts` with verdicts and rewards."""


class OnlineState(Artifact):
    """``state.safetensors`` and ``state.json``: the weights in the dtype of updates, the
    optimiser's moments and the number of iterations. The next segment of a run starts from it."""


class OnlineTraining(Artifact):
    """A policy trained on rollouts, and its state; ``metrics.jsonl`` has one line per iteration."""

    views = "steps.views:online"
    parts = {"model": Model, "state": OnlineState}  # noqa: RUF012


class OnlineRun(OnlineTraining):
    """An :class:`OnlineTraining` with the rollouts that its policy sampled."""

    parts = {"model": Model, "state": OnlineState, "rollouts": Judged}  # noqa: RUF012


class Comparisons(Artifact):
    """``comparisons.jsonl``: two models' answers to the same prompts, and a judge's verdicts."""

    views = "steps.views:comparisons"


class Scores(Artifact):
    """``scores.jsonl``: for each of :class:`Completions`, whether it is right."""

    views = "steps.views:scores"


class GgufModel(Artifact):
    """One ``.gguf`` file: weights, tokenizer and chat template."""


class ExportCheck(Artifact):
    """``README.md``, the card with the divergence of an export, and ``tokens.jsonl``."""


class RewardModel(Artifact):
    """A Hugging Face folder of a sequence classifier with one label: the score of a response."""

    views = "steps.views:model"


class RewardScores(Artifact):
    """``scores.jsonl``: the scores of :class:`Completions`, or of both sides of pairs."""


class RewardEvaluation(Artifact):
    """``metrics.json``, ``calibration.jsonl`` and ``best_of_n.jsonl`` of a reward model."""

    views = "steps.views:reward_evaluation"


class Influences(Artifact):
    """``influences.jsonl``: how much training on each pair would lower the held-out loss."""

    views = "steps.views:influences"


class Divergence(Artifact):
    """``kl.jsonl``: responses sampled from a model, with their logps under it and a reference."""


class BenchmarkTasks(Artifact):
    """Files of tasks that a suite itself has, their rows as Parquet, and ``fetched.json``."""


class Questions(Artifact):
    """``questions.jsonl``: what the tasks of a benchmark ask a model."""


class BenchmarkAnswers(Artifact):
    """``answers.jsonl``: a model's answers to :class:`Questions`, without scores."""


class Benchmark(Artifact):
    """``answers.jsonl`` and ``results.json``: a model's results on tasks of a suite."""

    views = "steps.views:benchmark"
