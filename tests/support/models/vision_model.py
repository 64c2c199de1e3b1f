"""A random Idefics3 (SmolVLM's family) that reads bytes and small pictures, as a folder."""

from pathlib import Path

from byte_model import byte_tokenizer

TEMPLATE = (
    "{%- for m in messages -%}<|{{ m['role'] }}|>"
    "{%- for part in m['content'] -%}"
    "{%- if part['type'] == 'image' -%}<image>{%- else -%}{{ part['text'] }}{%- endif -%}"
    "{%- endfor -%}{{ eos_token }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)
"""As templates of processors are: a message's content is a list of parts."""


def write_vision_model(folder: Path) -> Path:
    """One layer that sees, two that read; four placeholders for every square of 16 pixels."""
    import torch
    from transformers import (
        Idefics3Config,
        Idefics3ForConditionalGeneration,
        Idefics3ImageProcessorPil,
        Idefics3Processor,
    )

    special = ["<fake_token_around_image>", "<image>", "<global-img>", "<end_of_utterance>"]
    special += [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    tokenizer = byte_tokenizer(special, TEMPLATE, pad_token="<|end|>")
    pictures = Idefics3ImageProcessorPil(
        size={"longest_edge": 32}, max_image_size={"longest_edge": 16}
    )
    processor = Idefics3Processor(pictures, tokenizer, image_seq_len=4, chat_template=TEMPLATE)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = Idefics3Config(
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=0,  # pyright: ignore[reportCallIssue]
        scale_factor=2,
        tie_word_embeddings=False,
        vision_config={"image_size": 16, "patch_size": 4, "num_hidden_layers": 1, **size},
        text_config={
            "model_type": "llama",
            "vocab_size": len(tokenizer),
            "num_hidden_layers": 2,
            "num_key_value_heads": 2,
            "bos_token_id": None,
            "eos_token_id": 0,
            "pad_token_id": 0,
            **size,
        },
    )
    Idefics3ForConditionalGeneration(config).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
