"""The kinds of artifact that flow between the steps: what a step makes and what it takes."""

from pipeline import Artifact


class Model(Artifact):
    """A Hugging Face model folder: safetensors, config, tokenizer, chat template."""

    views = "steps.views:model"


class Tokens(Artifact):
    """Rows as token ids with masks, their ledger, and the ``tokenizer.json`` that made the ids."""

    viewer = "steps.data.view:show_row"


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
    """``tokens-00000.parquet`` and so on: texts as token ids, for whoever takes conversations."""


class Unpaired(Artifact):
    """``completions-*.parquet``: prompts, each with a completion that is good or not, as text."""


class UnpairedSplits(Artifact):
    """:class:`Unpaired` for every split, and ``ledger.parquet``."""

    parts = Unpaired


class UnpairedTokens(Tokens):
    """``tokens-00000.parquet`` and so on: completions as token ids with masks and labels."""


class TokenizedUnpaired(Tokens):
    """:class:`UnpairedTokens` for every split."""

    parts = UnpairedTokens


class ReferenceLogps(Artifact):
    """``logps-00000.parquet`` and so on: what a reference model gives to the responses of pairs."""


class Evaluation(Artifact):
    """``logps-*.parquet``, ``answers.jsonl`` and ``metrics.json`` of a model on held-out pairs."""

    views = "steps.views:evaluation"


class Prompts(Artifact):
    """``prompts-*.parquet``: prompts to answer, with the right answer where it is known."""


class PromptSplits(Artifact):
    """:class:`Prompts` for every split, and ``ledger.parquet``."""

    views = "steps.views:rows"

    parts = Prompts


class VerifiableTask(Artifact):
    """Demonstrations, and prompts with a known answer to train and test on."""

    parts = {"sft": Conversations, "train": Prompts, "test": Prompts}  # noqa: RUF012


class Completions(Artifact):
    """``completions.jsonl``: what a model answered to :class:`Prompts`."""

    views = "steps.views:completions"


class Rollouts(Artifact):
    """``rollouts-*.parquet``: what a policy drew, as token ids with logps and how each ended;
    ``prompts-*.parquet``, ``tokenizer.json`` and ``engine.json`` beside them."""

    views = "steps.views:rollouts"


class Judged(Rollouts):
    """:class:`Rollouts` with verdicts and rewards."""


class OnlineState(Artifact):
    """``state.safetensors`` and ``state.json``: weights as they are updated, the optimiser's
    moments, and after how many iterations: what another segment of an online run starts from."""


class OnlineTraining(Artifact):
    """A policy trained on rollouts, and its state; ``metrics.jsonl`` has a line an iteration."""

    views = "steps.views:online"

    parts = {"model": Model, "state": OnlineState}  # noqa: RUF012


class OnlineRun(OnlineTraining):
    """An :class:`OnlineTraining` and the rollouts that it drew itself."""

    parts = {"model": Model, "state": OnlineState, "rollouts": Judged}  # noqa: RUF012


class Scores(Artifact):
    """``scores.jsonl``: which :class:`Completions` are right."""

    views = "steps.views:scores"


class GgufModel(Artifact):
    """One ``.gguf`` file: weights, tokenizer and chat template."""


class RewardModel(Artifact):
    """A Hugging Face folder of a sequence classifier with one label: the score of a response."""

    views = "steps.views:model"


class RewardScores(Artifact):
    """``scores.jsonl``: the scores of :class:`Completions`, or of both sides of pairs."""


class RewardEvaluation(Artifact):
    """``metrics.json``, ``calibration.jsonl`` and ``best_of_n.jsonl`` of a reward model."""

    views = "steps.views:reward_evaluation"


class Influences(Artifact):
    """``influences.jsonl``: how much each row of pairs pulls a model towards held-out pairs."""

    views = "steps.views:influences"


class Divergence(Artifact):
    """``kl.jsonl``: what a model drew, with its logps by the model and by another."""


class Benchmark(Artifact):
    """``answers.jsonl`` and ``results.json``: a model on tasks of an evaluation harness."""

    views = "steps.views:benchmark"
