"""What only runs on a GPU, traced on PyTorch's meta device, or with fake tensors where code asks
for CUDA: shapes, dtypes and devices of every operation, and no number. What asks the driver itself
is given the answers of a machine with GPUs. Nothing here needs or shows a GPU; it finds what would
not even run."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.attention.varlen  # or a counter that is older knows nothing of it
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from benchmarks.architectures import tiny
from steps.losses.base import PreferenceLoss, UnpairedLoss
from steps.losses.combined import CombinedLoss
from steps.losses.registry import losses_of
from steps.models import activation_checkpointing, ranks
from steps.models.activation_checkpointing import checkpoint_activations
from steps.models.adapters import add_adapter
from steps.models.config import ActivationCheckpointing, Dtype, LoraConfig
from steps.models.folders import load_as
from steps.scoring import attention, gradients
from steps.scoring.attention import use_packed_attention
from steps.scoring.examples import TokenGroup, TokenResponse
from steps.scoring.logps import TokenLogps, forward_backward, token_logps
from steps.scoring.packing import make_pack
from steps.training.policy import require_deterministic_kernels

LLAMA_3_8B: dict[str, Any] = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
}


@pytest.fixture(autouse=True)
def meta_has_flash(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(attention, "_WITH_FLASH", {"meta"})
    monkeypatch.setattr(attention, "_ALWAYS_SPLITTING", set())
    attention._varlen_options.cache_clear()
    yield
    attention._varlen_options.cache_clear()


def pairs(count: int) -> list[TokenGroup]:
    def ids(length: int) -> tuple[int, ...]:
        return tuple(range(1, length + 1))

    return [
        TokenGroup(f"{i}", f"{i}", ids(256), (TokenResponse(ids(128)), TokenResponse(ids(100))))
        for i in range(count)
    ]


def on_meta(kind: Any, config: Any, dtype: torch.dtype = torch.bfloat16) -> Any:
    with torch.device("meta"):
        model = kind(config).to(dtype)
    use_packed_attention(model)
    return model


def minus_likelihood(logps: TokenLogps, _: slice) -> tuple[Tensor, dict[str, Tensor]]:
    return -logps.sums().sum(dim=1), {}


def counted(model: Any, groups: list[TokenGroup]) -> dict[str, int]:
    """Operations of a forward and backward, by kind."""
    with FlopCounterMode(display=False) as counter:
        scored = forward_backward(model, make_pack(groups).to("meta"), minus_likelihood)
    assert scored.losses.is_meta
    assert scored.logps.shape == (len(groups), 2)
    for parameter in model.parameters():
        assert parameter.grad.is_meta
        assert (parameter.grad.dtype, parameter.grad.shape) == (parameter.dtype, parameter.shape)
    return {f"{name}": flops for name, flops in counter.get_flop_counts()["Global"].items()}


class Named(TorchDispatchMode):
    """Notes the names of operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names = set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.name())
        return func(*args, **(kwargs or {}))


def test_gradients_of_embeddings_add_in_one_order_on_a_gpu() -> None:
    with FakeTensorMode(), Named() as noted:
        weight = nn.Parameter(torch.empty(9, 4, device="cuda", dtype=torch.bfloat16))
        rows = torch.empty(3, device="cuda", dtype=torch.int64)
        gradients.add_rows(weight, rows, torch.empty(3, 4, device="cuda"))
        assert weight.grad is not None
        assert (weight.grad.device.type, weight.grad.dtype) == ("cuda", torch.bfloat16)
    assert "aten::index_put_" in noted.names
    assert "aten::index_add_" not in noted.names  # its atomic additions have no order


@pytest.mark.parametrize("how", list(ActivationCheckpointing))
def test_two_layers_of_llama_3_in_bfloat16_go_through_flash_attention(
    how: ActivationCheckpointing,
) -> None:
    model = on_meta(LlamaForCausalLM, LlamaConfig(**LLAMA_3_8B, num_hidden_layers=2))
    groups = pairs(8)
    pack = make_pack(groups).to("meta")
    logps = token_logps(model, pack)
    assert (logps.device.type, logps.dtype) == ("meta", torch.float32)
    assert len(logps) == int(make_pack(groups).num_scored.sum())
    checkpoint_activations(model, how)
    flops = counted(model, groups)
    kept = how is not ActivationCheckpointing.full
    body = 2 * (2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336)
    tokens, scored = len(make_pack(groups).input_ids), len(logps)
    # Three products a weight. Computed again is all of a layer but its last product, which nothing
    # waits for, and nothing of the head.
    again = 0 if kept else body - 2 * 4096 * 14336
    products = 2 * (3 * body + again) * tokens + 3 * 2 * 4096 * 128256 * scored
    assert flops["aten.mm"] == pytest.approx(products, rel=0.01)
    attended = flops["torch_attn._varlen_attn"]
    backward = flops["torch_attn._varlen_attn_backward"]
    assert backward / attended == pytest.approx(2.5 if kept else 1.25)


@pytest.mark.parametrize("how", [ActivationCheckpointing.selective, ActivationCheckpointing.full])
def test_products_with_weights_of_4_bits_are_kept_like_others(how: ActivationCheckpointing) -> None:
    pytest.importorskip("bitsandbytes")
    model = on_meta(LlamaForCausalLM, LlamaConfig(**LLAMA_3_8B, num_hidden_layers=2))
    round_on_meta(model)
    add_adapter(model, LoraConfig(), seed=0)
    checkpoint_activations(model, how)
    groups = pairs(8)
    with Products() as products:
        forward_backward(model, make_pack(groups).to("meta"), minus_likelihood)
    trained = [p for p in model.parameters() if p.requires_grad]
    assert len(trained) == 2 * 2 * 7
    assert all(p.grad.is_meta and p.grad.shape == p.shape for p in trained)
    times = 1 if how is ActivationCheckpointing.selective else 2
    assert products.forward == times * 2 * 7  # seven products a layer


class Products(TorchDispatchMode):
    """Counts products with weights of 4 bits in forwards."""

    forward = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.forward += "gemm_4bit" in func.name()
        return func(*args, **(kwargs or {}))


def round_on_meta(model: Any) -> None:
    """What loading with `quantization` makes of a model."""
    from bitsandbytes.functional import quantize_4bit
    from bitsandbytes.nn.modules import Linear4bit, Params4bit

    for name, linear in list(model.model.named_modules()):
        if isinstance(linear, torch.nn.Linear):
            sizes = linear.in_features, linear.out_features
            layer = Linear4bit(*sizes, bias=False, compute_dtype=model.dtype, device="meta")
            packed, state = quantize_4bit(linear.weight.detach(), quant_type="nf4")
            layer.weight = Params4bit(packed, requires_grad=False, quant_state=state)  # pyright: ignore[reportCallIssue]
            model.model.set_submodule(name, layer)


def test_a_window_reaches_the_kernel_and_its_numbers_do_not_wait_for_the_device() -> None:
    config = MistralConfig(
        hidden_size=64,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=2,
        vocab_size=97,
        sliding_window=7,
    )
    model = on_meta(MistralForCausalLM, config)
    small = [
        TokenGroup("a", "a", (3,) * 9, (TokenResponse((4,) * 5), TokenResponse((5,) * 30))),
        TokenGroup("b", "b", (3,) * 20, (TokenResponse((4,)), TokenResponse((5,)))),
    ]
    # A number that is read off the device would be an error here: there is none to read.
    assert counted(model, small)["torch_attn._varlen_attn"] > 0


@pytest.mark.parametrize(
    ("architecture", "of"),
    [
        ("gemma2", "capped scores"),
        ("granite_swa", "sinks"),
        ("minicpm3", "heads of two sizes"),
        ("qwen3", "plain attention"),
    ],
)
def test_attention_of_every_kind_is_traced_with_every_checkpointing(
    monkeypatch: pytest.MonkeyPatch, architecture: str, of: str
) -> None:
    monkeypatch.setattr(activation_checkpointing, "LEAST_INPUT", 0)
    for how in ActivationCheckpointing:
        model: Any = tiny(architecture, num_hidden_layers=1)
        model.to(torch.bfloat16).to("meta")
        use_packed_attention(model)
        checkpoint_activations(model, how)
        flashes = counted(model, pairs(2)).get("torch_attn._varlen_attn", 0)
        assert (flashes > 0) is (of == "plain attention")


CUDA_2 = torch.device("cuda:2")


def losses() -> dict[str, PreferenceLoss | UnpairedLoss]:
    kinds = {**losses_of(PreferenceLoss), **losses_of(UnpairedLoss)}
    return {n: kind() for n, kind in kinds.items() if not issubclass(kind, CombinedLoss)}


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A machine with three GPUs, of which this thread uses the second; what it is asked for."""
    asked: list[Any] = []

    def noting(name: str, answer: Any = None) -> Any:
        def note(*args: Any, **kwargs: Any) -> Any:
            asked.append((name, *args, *kwargs.values()))
            return answer

        return note

    answers = {"is_available": True, "is_initialized": True, "device_count": 3, "current_device": 1}
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda answer=answer: answer)
    monkeypatch.setattr(torch.cuda, "set_device", noting("set_device"))
    monkeypatch.setattr(torch.cuda, "get_rng_state", noting("get_rng_state", torch.tensor([7])))
    monkeypatch.setattr(torch.cuda, "set_rng_state", noting("set_rng_state"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", noting("peak", 3 * 10**9))
    monkeypatch.setattr(torch.cuda, "get_device_name", noting("name", "NVIDIA H100 80GB HBM3"))
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: [asked.append("pin"), tensor][1])
    return asked


def test_checkpointing_puts_back_the_random_state_of_the_layer_s_own_gpu(gpus: list[Any]) -> None:
    hidden: Any = SimpleNamespace(is_cuda=True, device=CUDA_2)
    before = activation_checkpointing._random_state(hidden)
    drawn = torch.rand(3)
    activation_checkpointing._set_random_state(hidden, before)
    assert torch.equal(torch.rand(3), drawn)
    assert gpus == [("get_rng_state", CUDA_2), ("set_rng_state", torch.tensor([7]), CUDA_2)]


def test_convolutions_on_a_gpu_keep_the_bits_of_float32(
    gpus: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    moved = []
    monkeypatch.setattr(LlamaForCausalLM, "to", lambda model, to: [moved.append(to), model][1])
    tiny("llama").save_pretrained(tmp_path)
    moved.clear()
    load_as(None, tmp_path, Dtype.float32)
    assert (moved, torch.backends.cudnn.allow_tf32) == ([torch.device("cuda")], False)


def test_deterministic_kernels_are_asked_for_with_the_workspace_they_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    try:
        require_deterministic_kernels()
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] in (":4096:8", ":16:8")
    finally:
        torch.use_deterministic_algorithms(False)
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


def test_each_rank_takes_its_gpu_before_nccl_connects_it(
    gpus: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"WORLD_SIZE": "3", "RANK": "2", "LOCAL_RANK": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ranks.dist, "init_process_group", lambda by: gpus.append(by))
    monkeypatch.setattr(ranks, "init_device_mesh", lambda kind, shape: (kind, shape))
    monkeypatch.setattr(ranks.dist, "get_rank", lambda: 2)
    monkeypatch.setattr(ranks, "_group", lambda: None)
    monkeypatch.setattr(ranks.Ranks, "wait", lambda _: None)
    monkeypatch.setattr(ranks.dist, "destroy_process_group", lambda: None)
    with ranks.together() as joined:
        assert joined == ranks.Ranks(2, 3, ("cuda", (3,)))  # pyright: ignore[reportArgumentType]
    assert gpus == [("set_device", 2), "cpu:gloo,cuda:nccl"]
    monkeypatch.setenv("LOCAL_RANK", "3")
    with pytest.raises(ValueError, match="process 3 of this machine has no GPU, as there are 3"):
        ranks.together().__enter__()
