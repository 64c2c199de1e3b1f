"""``tokenize_texts``: convert plain texts to token ids for ``train_sft``, in Parquet."""

from pipeline import Metrics, Output, step
from steps.core_adapters.tokenize import write_tokens
from steps.data.tokens.config import TextConfig
from steps.kinds import Model, Texts, TextTokens


@step(makes=TextTokens, estimate="steps.step_needs:tokenizes")
def tokenize_texts(
    out: Output, texts: Texts, tokenizer: Model, config: TextConfig = TextConfig()
) -> Metrics:
    """Write ``tokens-00000.parquet`` and so on, ``ledger.parquet``, and a ``summary.md``.

    Training covers all tokens but the first of a text. A long text is split into several rows or
    cut; :mod:`steps.data.tokens.texts` explains how.

    Raises:
        TemperError: no text is left, or more were dropped than allowed.
    """
    return write_tokens(out, "texts", texts, tokenizer, config)
