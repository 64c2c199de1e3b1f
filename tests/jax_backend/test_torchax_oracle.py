"""A second oracle of the JAX decoder: transformers' own models, which torchax runs on JAX.

torchax 0.0.13 works with torch 2.11 and fails with Temper's. So the test needs an environment of
its own (see docs/tpu.md), and is skipped elsewhere.
"""

from pathlib import Path
from typing import Any

import oracle
import pytest
import torch

jax = pytest.importorskip("jax", reason="the extra temper-ml[jax] is not installed")
torchax = pytest.importorskip("torchax", reason="torchax is not installed")
if torch.__version__ >= "2.13":
    pytest.skip("torchax does not work with this torch", allow_module_level=True)

from families import FAMILIES
from tiny_models import model_folder
from token_groups import pairs
from transformers import AutoModelForCausalLM

from steps.jax_backend.jax_scorer import JaxScorer
from steps.models.config import Dtype


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2"])
def test_the_decoder_computes_what_torchax_does(tmp_path: Path, family: str) -> None:
    folder, groups = model_folder(tmp_path, FAMILIES[family]), pairs()[:2]
    scorer = JaxScorer(folder, Dtype.float64, 64, devices=1)
    actual = scorer.logps(scorer.prepare(groups)).result().sequences
    scorer.close()
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager"
    )
    # Another library's cosine of a float32 angle differs in its last bit.
    angles = model.model.rotary_emb(torch.zeros(1, dtype=torch.float64), torch.arange(99)[None])
    with torchax.default_env(), oracle.Float64():
        model = model.eval().to("jax")
        model.model.rotary_emb.forward = lambda x, *_, **__: tuple(
            table[:, : x.shape[1]].to("jax") for table in angles
        )
        expected = []
        for prompt, response in [(g.prompt_ids, r.ids) for g in groups for r in g.responses]:
            ids = torch.tensor([[*prompt, *response]])
            logits = model(ids.to("jax"), use_cache=False).logits.cpu()
            logps = logits.detach().log_softmax(-1)[0, len(prompt) - 1 : -1]
            expected.append(logps.gather(1, ids[0, len(prompt) :, None]).sum())
    torch.testing.assert_close(actual, torch.stack(expected), rtol=0, atol=1e-10)
