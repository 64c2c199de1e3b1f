"""The tokens that a step reads, once it is certain that its model knows them."""

from pathlib import Path

from pipeline import Artifact
from steps.data.vocabularies import require_tokens_of


def tokens_for(model: Artifact, tokens: Artifact) -> Path:
    """The folder of ``tokens``.

    Raises:
        ValueError: another tokenizer than that of ``model`` made them, and ids that occur mean
            something else to the model.
    """
    require_tokens_of(model.path, tokens.path)
    return tokens.path
