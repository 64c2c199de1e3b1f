"""A random two-layer Llama that reads bytes, as a Hugging Face folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TEMPLATE = (
    "{%- for m in messages -%}<|{{ m['role'] }}|>{{ m['content'] }}{{ eos_token }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)


def byte_tokenizer(
    more: Sequence[str] = (), template: str = TEMPLATE, **named: str
) -> "PreTrainedTokenizerFast":
    """A tokenizer of bytes, of the turns of a conversation, and of `more` special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>", *more]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*special, *alphabet])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    core.decoder = decoders.ByteLevel()  # pyright: ignore
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|end|>",
        additional_special_tokens=special[1:],
        chat_template=template,
        **named,
    )


def write_byte_model(folder: Path) -> Path:
    """A random two-layer Llama that reads bytes, as a Hugging Face folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, bos_token_id=None, eos_token_id=0,
        pad_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
