"""``init_model``: a small Llama with random weights, for experiments from scratch."""

from dataclasses import dataclass

from pipeline import Metrics, Output, step
from steps.kinds import Model


@dataclass(frozen=True)
class LlamaShape:
    """The size of a Llama (Touvron et al. 2023) with tied embeddings.

    Args:
        hidden_size: the width of the residual stream.
        layers: the number of layers.
        heads: the attention heads of each layer.
        feed_forward: the width of each feed-forward block.
        max_length: the largest number of positions.
    """

    hidden_size: int = 96
    layers: int = 2
    heads: int = 4
    feed_forward: int = 256
    max_length: int = 64


@step(makes=Model, estimate="steps.step_needs:writes_model")
def init_model(out: Output, shape: LlamaShape = LlamaShape(), seed: int = 0) -> Metrics:
    """Write a model folder with the word-level tokenizer of :mod:`steps.data.rows.arithmetic`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from steps.data.rows.arithmetic import write_tokenizer
    from steps.data.tokens.rendering import load_tokenizer
    from steps.models.folders import save_model

    write_tokenizer(out.path)
    vocabulary = load_tokenizer(out.path).get_vocab()
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(vocabulary),
            hidden_size=shape.hidden_size,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.heads,
            intermediate_size=shape.feed_forward,
            max_position_embeddings=shape.max_length,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=vocabulary["<|end|>"],
            pad_token_id=vocabulary["<|pad|>"],
        )
    )
    save_model(model, out.path)
    return {"parameters": model.num_parameters()}
