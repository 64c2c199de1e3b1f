"""Low-rank adapters (Hu et al. 2021, https://arxiv.org/abs/2106.09685), through `peft`.

One factor of a new adapter is zero, so the adapted model equals the base bit for bit at first, with
magnitudes (DoRA), too. So preference training needs no second model: the reference is the base
without an adapter, and `run_reference` computes its logps from the folder from which the policy
starts.

A trained adapter is saved in two ways: merged into the base's weights, as an ordinary model; and
separately, in the format that `peft` loads onto a base.
"""

import json
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from steps.models.config import LoraConfig
from steps.models.quantized import quantization_of, values_of
from steps.shared.execution_detail import execution_detail

if TYPE_CHECKING:
    from peft import PeftModel


def add_adapter(
    model: PreTrainedModel, config: LoraConfig, seed: int, task: str | None = "CAUSAL_LM"
) -> "PeftModel":
    """Add adapters to linear layers of `model`, in place, and freeze all other weights except those
    of `modules_to_save`.

    Without `target_modules`, all linear layers except the head and those of `_left_out` get an
    adapter. `task` is `peft`'s name of the model's task; with None, `peft` requires no particular
    methods of the model.

    Raises ValueError, which names the module, if `model` has no such layer; or if an adapter would
    be on a matrix that head and embeddings share. To merge it would change both, and the saved
    model would not equal the trained one. Raises ValueError, too, for dropout of an adapter of
    experts that are one tensor: it changes their weights, so it has no input that could be dropped;
    for magnitudes of what is no linear layer; and for `modules_to_save` that the model lacks, or
    that cannot be trained.
    """
    import peft

    _require_modules(model, config.target_modules or ())
    targets = list(config.target_modules) if config.target_modules else "all-linear"
    saved = _modules_to_save(model, config.modules_to_save)
    left_out = _left_out(model, () if config.target_modules else saved, bool(config.target_modules))
    described = peft.LoraConfig(
        r=config.r,
        lora_alpha=config.alpha,  # pyright: ignore[reportArgumentType] (any number is)
        lora_dropout=config.dropout,
        use_rslora=config.rslora,
        target_modules=targets,
        exclude_modules=left_out or None,
        task_type=task,  # pyright: ignore[reportArgumentType]
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            adapted = peft.get_peft_model(model, described, autocast_adapter_dtype=False)
        except ValueError as error:
            raise ValueError(_explained(error, model, config)) from error
    if quantization_of(model) is not None:  # then `peft` leaves adapters in float32
        for name, parameter in model.named_parameters():
            if ".lora_" in name:
                parameter.data = parameter.data.to(model.dtype)
    _require_untied(model)
    if config.dora:
        _add_magnitudes(model)
    _train(model, saved)
    # What follows of these for the layers is done, so they only describe the adapter that is saved.
    described = adapted.peft_config["default"]
    assert isinstance(described, peft.LoraConfig)
    described.use_dora, described.modules_to_save = config.dora, saved or None
    if config.rslora:  # `peft` joins the adapters of experts, and multiplies these by more
        for layer in filter(_is_adapted, model.modules()):
            cast(Any, layer).scaling["default"] = config.scale
        ranks = described.rank_pattern or {}
        described.alpha_pattern = {n: config.scale * math.sqrt(r) for n, r in ranks.items()}
    return cast("PeftModel", adapted)


ALL_ARE_SAVED = (
    "modules_to_save holds every layer that would get an adapter; name less, or leave out lora to "
    "train all weights"
)


@execution_detail
def _explained(error: ValueError, model: PreTrainedModel, config: LoraConfig) -> str:
    if config.modules_to_save and "exclude_modules" in str(error):
        return ALL_ARE_SAVED
    if not config.dropout or "lora_dropout" not in str(error):  # which peft's ParamWrapper names
        return str(error)
    return (
        f"lora.dropout={config.dropout:g}, but adapters of the experts of {type(model).__name__} "
        "cannot drop anything; set it to 0, or name layers that are no experts in target_modules, "
        "as in [q_proj, v_proj]"
    )


def _require_modules(model: PreTrainedModel, targets: Sequence[str]) -> None:
    """Raise ValueError if no layer that can have an adapter has one of these names; `peft` passes
    over a name beside others."""
    layers = {n: m for n, m in model.named_modules() if isinstance(m, _LAYERS) and takes_adapter(m)}
    for target in targets:
        if not any(f".{name}".endswith(f".{target}") for name in layers):
            embeddings = cast("nn.Embedding", model.get_input_embeddings())
            matrices = (
                name
                for name, m in layers.items()
                if isinstance(m, (nn.Linear, Conv1D)) and m.weight is not embeddings.weight
            )
            known = ", ".join(sorted({name.rpartition(".")[2] for name in matrices}))
            raise ValueError(
                f"target_modules names {target}, and {type(model).__name__} has no such layer that "
                f"an adapter can be added to; it has {known}"
            )


_LAYERS = (nn.Linear, Conv1D, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""The layers for which `peft` has an adapter."""


def _left_out(model: PreTrainedModel, saved: Sequence[str], named: bool) -> list[str]:
    """The linear layers, by name, that get no adapter: those that are none but in name, and those
    within modules that are `saved`; and, unless layers are `named`, those that `peft` refuses."""
    refused = () if named or model.config.model_type not in _MAMBA else ("out_proj",)
    within = tuple(f"{name}." for name in saved)
    return [
        name
        for name, module in model.named_modules()
        if not takes_adapter(module)
        or name.rpartition(".")[2] in refused
        or (isinstance(module, _LAYERS) and f"{name}.".startswith(within))
    ]


_MAMBA = ("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h")
"""Models whose layers hand the weight of `out_proj` to a kernel, which an adapter would not see."""


@torch.no_grad()
def takes_adapter(module: nn.Module) -> bool:
    """Whether what an adapter computes can be added to what a module returns. It cannot for a
    linear layer whose class returns something else than a row of its output for a row of its input:
    Llama 4's router returns a tuple."""
    if not isinstance(module, nn.Linear) or type(module) is nn.Linear:
        return True
    if tuple(module.weight.shape) != (module.out_features, module.in_features):
        return True  # of 4 bits, which `peft` knows
    try:
        result = module(module.weight.new_zeros(1, module.in_features))
    except (RuntimeError, ValueError, IndexError, TypeError):
        return False
    return isinstance(result, Tensor) and result.shape == (1, module.out_features)


def _require_untied(model: PreTrainedModel) -> None:
    """Raise ValueError if a matrix that head and embeddings share has an adapter."""
    ends: tuple[Any, ...] = (model.get_input_embeddings(), model.get_output_embeddings())
    if ends[1] is None or ends[0].weight is not ends[1].weight:
        return
    adapted = {name for name, module in model.named_modules() if _is_adapted(module)}
    if shared := sorted(name for name in adapted if model.get_submodule(name) in ends):
        raise ValueError(
            f"target_modules names {shared[0].rpartition('.')[2]}, but head and embeddings of "
            f"{type(model).__name__} are one matrix, so that its adapter cannot be merged into the "
            "one without the other; leave it out"
        )


def _modules_to_save(model: PreTrainedModel, names: Sequence[str]) -> list[str]:
    """The full names of the modules with these names, in order, without those inside another.

    Raises ValueError if the model has none of a name; if weights of one are rounded; or if only one
    of head and embeddings is named, and they are one matrix.
    """
    modules = {n: m for n, m in model.named_modules() if n and _has_weights(m)}
    modules = {n: m for n, m in modules.items() if not isinstance(m, nn.ModuleList | nn.ModuleDict)}
    whole = set[str]()
    for name in names:
        found = [n for n in modules if f".{n}".endswith(f".{name}")]
        if not found:
            own = {
                n.rpartition(".")[2] for n, m in modules.items() if _has_weights(m, within=False)
            }
            raise ValueError(
                f"modules_to_save names {name}, and {type(model).__name__} has no such module with "
                f"weights; it has {', '.join(sorted(own))}"
            )
        if any(hasattr(p, "quant_state") for n in found for p in modules[n].parameters()):
            raise ValueError(
                f"modules_to_save names {name}, whose weights have 4 bits and cannot be trained; "
                "leave it out, or lora.quantization"
            )
        whole |= {*found}
    _require_both_ends(model, [m for name in whole for m in modules[name].modules()])
    return sorted(n for n in whole if not n.startswith(tuple(f"{other}." for other in whole)))


def _has_weights(module: nn.Module, within: bool = True) -> bool:
    return any(True for _ in module.parameters(recurse=within))


def _require_both_ends(model: PreTrainedModel, trained: Sequence[nn.Module]) -> None:
    """Raise ValueError if head and embeddings are one matrix, and only one of them is trained."""
    ends: list[Any] = [model.get_input_embeddings(), model.get_output_embeddings()]
    if ends[1] is None or ends[0].weight is not ends[1].weight:
        return
    if len({any(end is module for module in trained) for end in ends}) > 1:
        both = [n.rpartition(".")[2] for n, m in model.named_modules() if m in ends]
        raise ValueError(
            f"head and embeddings of {type(model).__name__} are one matrix, and modules_to_save "
            f"names one of them; name both, {' and '.join(both)}, or neither"
        )


def _train(model: PreTrainedModel, modules: Sequence[str]) -> None:
    """Let the weights of modules be trained; raise ValueError for one with an adapter."""
    for name in modules:
        module = model.get_submodule(name)
        if any(map(_is_adapted, module.modules())):
            raise ValueError(
                f"modules_to_save names {name}, which gets an adapter; leave it out there, or out "
                "of target_modules"
            )
        module.requires_grad_(True)


@torch.no_grad()
def _add_magnitudes(model: PreTrainedModel) -> None:
    """Give all adapters magnitudes; raise ValueError, which names it, for one of another layer than
    a linear one."""
    layers: list[tuple[str, Any]] = [(n, m) for n, m in model.named_modules() if _is_adapted(m)]
    for name, layer in layers:
        if hasattr(layer, "get_param") or not isinstance(layer.base_layer, (nn.Linear, Conv1D)):
            raise ValueError(
                f"lora.dora=true, but {name} of {type(model).__name__} is no linear layer, whose "
                "rows have magnitudes; leave dora out, or name linear layers alone in "
                "target_modules, as in [q_proj, v_proj]"
            )
        magnitudes = Magnitudes(layer)
        layer.lora_magnitude_vector["default"] = magnitudes  # where peft looks for parameters
        layer.lora_variant["default"] = magnitudes  # whose forward a layer of peft then calls


class Magnitudes(nn.Module):
    """The magnitudes m of a layer's rows (DoRA, Liu et al. 2024, section 4).

    The layer computes with the rows m / |w + Δw| · (w + Δw), of which m and Δw = scale · b A are
    trained. The norm has no gradient, as in section 4.3 and in `peft`. Its square is

        |w|² + 2 scale · b A wᵀ + scale² · b A Aᵀ bᵀ

    which costs as much as r more tokens, and no matrix of the weight's size. Where b is 0, it is
    |w|² to the bit. So that m is, too, only what it has beside |w| is a parameter, which 16 bits
    hold as precisely as they hold an adapter.

    Args:
        layer: `peft`'s, with an adapter.

    weight: m - |w|, [O].
    squares: |w|², [O], not below float32.
    """

    squares: Tensor

    def __init__(self, layer: Any) -> None:
        super().__init__()
        factor = layer.lora_B["default"].weight
        dtype = torch.promote_types(factor.dtype, torch.float32)
        norms = torch.linalg.vector_norm(_rows(layer), dim=1, dtype=dtype)
        self.weight = nn.Parameter(factor.new_zeros(len(factor)))
        self.register_buffer("squares", norms.square(), persistent=False)

    def forward(
        self, layer: Any, active_adapter: str, x: Tensor, result: Tensor, **_: Any
    ) -> Tensor:
        """What `layer` returns for `x` [..., I], for which its base returns `result` [..., O]."""
        dropout = layer.lora_dropout[active_adapter]
        plain = result
        if isinstance(dropout, nn.Dropout) and dropout.training:
            x = dropout(x)
            plain = layer.base_layer(x)
        if layer.base_layer.bias is not None:
            plain = plain - layer.base_layer.bias
        factors = layer.lora_A[active_adapter], layer.lora_B[active_adapter]
        product = factors[1](factors[0](x)) * layer.scaling[active_adapter]
        return result + product + self.excess(layer).to(result.dtype) * (plain + product)

    def excess(self, layer: Any) -> Tensor:
        """m / |w + Δw| - 1 of each row, [O]; 0 at first."""
        norms = self.squares.sqrt()
        now = self._norms(layer)
        return ((norms - now) + self.weight) / now.where(now > 0, 1)

    def magnitudes(self) -> Tensor:
        """m, [O]."""
        return self.squares.sqrt() + self.weight

    @torch.no_grad()
    def _norms(self, layer: Any) -> Tensor:
        """|w + Δw|, [O]."""
        scale = layer.scaling["default"]
        a, b = (x["default"].weight.detach() for x in (layer.lora_A, layer.lora_B))
        across = functional.linear(a, _rows(layer).to(a.dtype))
        a, b, across = (x.to(self.squares.dtype) for x in (a, b, across))
        mixed, own = (across.t() * b).sum(1), (b @ (a @ a.t()) * b).sum(1)
        return (self.squares + 2 * scale * mixed + scale**2 * own).clamp(min=0).sqrt()


def _rows(layer: Any) -> Tensor:
    """The weight of an adapted linear layer, [O, I]."""
    weight = layer.base_layer.weight
    weight = values_of(weight) if hasattr(weight, "quant_state") else weight
    return weight.t() if layer.fan_in_fan_out else weight


class ExampleNoise:
    """The source of adapters' dropout: noise of an example, whatever forward reads it.

    Each row of an example has its noise, drawn from the step's seed, the example's number in the
    batch and the module. So the result of a step depends neither on how the batch is cut into
    forwards, nor on the number of ranks. Without `begin` a module draws as torch does.
    """

    def __init__(self) -> None:
        self._seed = 0
        self._examples: Sequence[tuple[int, int]] = ()
        self._rows: Tensor | None = None

    def begin(
        self, seed: int, examples: Sequence[tuple[int, int]] = (), rows: Tensor | None = None
    ) -> None:
        """Describe the next forward, whose backward must end before the next call.

        Args:
            seed: the step's.
            examples: the number of each in the batch, and of its rows, which stand one example
                after the other; none if this is not known.
            rows: int64; for each input row of the forward, which of the examples' rows it repeats.
        """
        self._seed, self._examples, self._rows = seed, examples, rows

    def kept(self, module: int, probability: float, like: Tensor) -> Tensor | None:
        """Which elements of the input `like` of a `module` are kept; None if it has other rows than
        the forward, as in an expert, which is given some of them."""
        rows, size = math.prod(like.shape[:-1]), like.shape[-1]
        drawn = [
            torch.rand(count, size, device=like.device, generator=self._of(module, example, like))
            for example, count in self._examples
        ]
        missing = rows - sum(map(len, drawn))
        if not drawn or missing < 0 or (self._rows is not None and self._rows.numel() != rows):
            return None
        if self._rows is None:  # a pack ends with filler
            drawn.append(like.new_zeros(missing, size, dtype=torch.float32))
        values = torch.cat(drawn)
        values = values if self._rows is None else values.index_select(0, self._rows.flatten())
        return (values < probability).view_as(like)

    def _of(self, module: int, example: int, like: Tensor) -> torch.Generator:
        words = np.random.SeedSequence([self._seed, module, example])
        seed = int(words.generate_state(1, np.uint64)[0])
        return torch.Generator(like.device).manual_seed(seed)


class _AdapterDropout(nn.Dropout):
    """The dropout of one adapter's input, in training mode whatever the mode of other modules."""

    def __init__(self, number: int, p: float, noise: ExampleNoise) -> None:
        super().__init__(p)
        self._number, self._noise = number, noise

    def forward(self, input: Tensor) -> Tensor:
        kept = self._noise.kept(self._number, 1 - self.p, input) if self.training else None
        if kept is None:
            return super().forward(input)
        return input.masked_fill(~kept, 0) / (1 - self.p)


def draw_by_example(model: PreTrainedModel) -> ExampleNoise | None:
    """Switch the dropout of adapters on, whatever the mode of the other modules, and let it draw
    from the noise that is returned; None if no adapter drops anything."""
    noise, number = ExampleNoise(), 0
    for name, module in model.named_modules():
        if not name.endswith(".lora_dropout") or not isinstance(module, nn.ModuleDict):
            continue
        for adapter, dropout in module.items():
            if isinstance(dropout, nn.Dropout):
                module[adapter] = _AdapterDropout(number, dropout.p, noise)
                number += 1
        module.train()
    return noise if number else None


@contextmanager
def without_adapters(model: PreTrainedModel) -> Iterator[None]:
    """Let `model` compute inside the block as it would without its adapters, if it has any."""
    layers: list[Any] = list(filter(_is_adapted, model.modules()))
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


BASE = "base.json"
"""The file beside adapters with the digest of the model that they were trained on."""


def save_adapter(adapted: "PeftModel", folder: Path, base: str) -> None:
    """Write the adapters in the format that ``PeftModel.from_pretrained(base, folder)`` reads, and
    the digest of their base (`model_digest`).

    The bytes depend only on both: they contain no path of a base, and no order of a set.
    """
    import peft

    folder.mkdir(parents=True)
    described = copy(adapted.peft_config["default"])
    assert isinstance(described, peft.LoraConfig)
    tensors = peft.get_peft_model_state_dict(adapted, save_embedding_layers=False)
    for name, module in adapted.named_modules():
        if isinstance(module, Magnitudes):
            tensors[name.removesuffix(".default")] = module.magnitudes()
    for name in described.modules_to_save or ():
        saved = adapted.get_submodule(f"base_model.model.{name}").state_dict()
        tensors |= {f"base_model.model.{name}.{key}": w.clone() for key, w in saved.items()}
    copies = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(copies, folder / "adapter_model.safetensors", {"format": "pt"})
    described.base_model_name_or_path = None
    described.inference_mode = True
    if not isinstance(described.target_modules, str):
        described.target_modules = sorted(described.target_modules or ())
    described.exclude_modules = sorted(described.exclude_modules or ()) or None
    described.save_pretrained(str(folder))
    (folder / BASE).write_text(json.dumps({"weights": base}) + "\n", "utf-8")


@torch.no_grad()
def merged_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """The parameters that `merge_adapter` would leave, by the base's names; `model`, with its
    adapters in place, does not change."""
    layers: Iterator[Any] = filter(_is_adapted, model.modules())
    adapted = {id(_weight(layer)): layer for layer in layers}
    merged = {}
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            continue
        value = parameter.detach()
        if id(parameter) in adapted:
            value = _with_adapter(adapted[id(parameter)]).to(value.dtype)
        merged[name.replace("base_layer.", "")] = value
    return merged


def merge_adapter(adapted: "PeftModel") -> PreTrainedModel:
    """Merge the adapters into the base model's weights, and return the base without adapters.

    A 16-bit weight and its adapter are added in float32, and their sum is rounded once. Where an
    adapter changes a weight by less than half the distance to the next 16-bit number, rounding
    discards the change. A warning says how large the rounding is beside all changes, if it is.
    """
    changes = [_merge(module) for module in adapted.modules() if _is_adapted(module)]
    wanted, lost = (math.fsum(values) for values in zip(*changes, strict=True))
    if lost > (_LOST / 100) ** 2 * wanted:
        warnings.warn(
            "rounding the merged weights to 16 bits moves them by "
            f"{100 * math.sqrt(lost / wanted):.0f} % as far as the adapters do; the folder "
            "adapter/ has the adapters as trained, and dtype=float32 avoids the rounding",
            stacklevel=2,
        )
    return cast(PreTrainedModel, adapted.unload())


_LOST = 30
"""The size of the rounding, in per cent of the adapters' change, from which a warning tells."""


@torch.no_grad()
def _merge(layer: Any) -> tuple[float, float]:
    """Merge one layer's adapter; the squared norms of its change, and of what rounding discards."""
    weight = _weight(layer)
    before, exact = weight.data, _with_adapter(layer)
    weight.data = exact.to(before.dtype)
    if weight.dtype is exact.dtype:
        return 0.0, 0.0
    return (exact - before).square().sum().item(), (exact - weight).square().sum().item()


@torch.no_grad()
def _with_adapter(layer: Any) -> Tensor:
    """The weight of a layer with its adapter in it, in float32 if the weight has 16 bits."""
    weight = _weight(layer)
    dtype = torch.promote_types(weight.dtype, torch.float32)
    own = [weight, *(p for name, p in layer.named_parameters() if name.startswith("lora_"))]
    before = [tensor.data for tensor in own]
    try:
        for tensor in own:
            tensor.data = tensor.data.to(dtype)
        weight = weight + layer.get_delta_weight("default")
        if (magnitudes := layer.lora_variant.get("default")) is None:
            return weight
        factors = 1 + magnitudes.excess(layer)[:, None]
        return weight * (factors.t() if layer.fan_in_fan_out else factors)
    finally:
        for tensor, data in zip(own, before, strict=True):
            tensor.data = data


def _is_adapted(module: Any) -> bool:
    return hasattr(module, "lora_A")


def _weight(module: Any) -> Tensor:
    """The weight that a layer's adapter changes; that of experts has a name of its own."""
    return module.get_param() if hasattr(module, "get_param") else module.get_base_layer().weight
