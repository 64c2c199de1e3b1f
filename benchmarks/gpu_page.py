"""Parity, determinism, speed of training and sampling, and memory on this machine's GPU, the same
steps on all of its GPUs, and TRL beside Temper, as one page.

    python benchmarks/gpu_page.py [--model tiny | 1b | 8b] [--trl PYTHON] [--page gpu.md]

Each section is a process of its own, so a section which fails leaves its error on the page, and
the others their figures. Models are Llamas with random weights. Without a GPU the same code runs on
the processor, which shows that the script works, and nothing about a GPU.
"""

import argparse
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.architectures import pairs
from benchmarks.llamas import LLAMAS
from steps.generation.engine import Request
from steps.generation.slots import SlotEngine
from steps.models.activation_checkpointing import checkpoint_activations
from steps.models.adapters import add_adapter
from steps.models.config import ActivationCheckpointing, Dtype, LoraConfig, Quantization
from steps.models.folders import load_model
from steps.models.ranks import ALONE, Ranks, together
from steps.scoring.architectures.compiled_layers import compile_layers
from steps.scoring.attention import use_packed_attention
from steps.scoring.logps import TokenLogps, token_logps
from steps.scoring.packing import make_pack
from steps.scoring.parity import own_logps
from steps.scoring.scorer import Scorer
from steps.training.config import OptimizerConfig
from steps.training.policy import require_deterministic_kernels
from steps.training.trainer import Trainer, build_trainer

_TINY = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "tiny": _TINY,
    **{name: {**shape, "max_position_embeddings": 131072} for name, shape in LLAMAS.items()},
}
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
LENGTHS = {"tiny": (24, 12), "1b": (512, 256), "8b": (512, 256)}
"""Tokens of a prompt, and of each response."""
BUDGETS = {"tiny": (64, 256), "1b": (4096, 16384, 65536), "8b": (4096, 16384)}
"""Tokens of a forward."""
SLOTS = {"tiny": (16,), "1b": (64, 256), "8b": (64, 256)}
STARTED, REPLAYED = "started one by one", "replayed"
OPTIONS: dict[str, tuple[LoraConfig | None, bool]] = {
    "all weights": (None, False),
    "all weights, AdamW with 8 bits": (None, True),
    "adapters": (LoraConfig(), False),
    "adapters over 4 bits": (LoraConfig(quantization=Quantization.nf4_double), False),
}
"""Adapters, and whether the optimiser's state has 8 bits."""
STEPS, COMPILED = 4, "compiled"


def machine(_: str) -> Iterator[str]:
    yield f"- {torch.cuda.get_device_name() if GPU else f'no GPU: {platform.machine()}'}"
    yield f"- torch {torch.__version__}, transformers {transformers.__version__}"
    yield f"- Python {platform.python_version()}, {platform.system()}"


def parity(model_name: str) -> Iterator[str]:
    """Token logps of packs and of single forwards, beside single forwards in float64."""
    yield "| dtype | read | largest error of a token, nats | mean error |"
    yield "|---|---|--:|--:|"
    config = {**MODELS[model_name], "num_hidden_layers": 2}
    prompt, response = LENGTHS[model_name]
    pack = make_pack(pairs([(prompt, response, response)] * 3)).to(DEVICE)
    model = random_model(config, torch.float64)
    exact = own_logps(model, pack)
    for dtype in (torch.float32, torch.bfloat16):
        model = random_model(config, dtype)
        for how in ("alone", "packed"):
            if how == "packed":
                use_packed_attention(model)
            found = (token_logps if how == "packed" else own_logps)(model, pack)
            off = (found.double() - exact).abs()
            yield f"| {_name(dtype)} | {how} | {off.max():.1e} | {off.mean():.1e} |"


def determinism(model_name: str) -> Iterator[str]:
    """Whether equal steps from equal weights give equal bits."""
    yield f"- as it is: {_equal_steps(model_name)}"
    if GPU:
        require_deterministic_kernels()
    yield f"- `deterministic=true`: {_equal_steps(model_name)}"


def _equal_steps(model_name: str) -> str:
    runs = [_weights_after_steps(model_name) for _ in range(3)]
    different = [n for n in runs[0] if any(not torch.equal(runs[0][n], run[n]) for run in runs)]
    return f"{len(different)} of {len(runs[0])} parameters differ between three runs"


def _weights_after_steps(model_name: str) -> dict[str, torch.Tensor]:
    config = {**MODELS[model_name], "num_hidden_layers": 2}
    model = random_model(config, torch.bfloat16 if GPU else torch.float32)
    use_packed_attention(model)
    prompt, response = LENGTHS[model_name]
    groups = pairs([(prompt, response, response)] * 8)
    trainer = Trainer(Scorer(model, BUDGETS[model_name][0]), OptimizerConfig(1e-3))
    for _ in range(2):
        trainer.forward_backward(trainer.prepare(groups), MeanLoss())
        trainer.optim_step(1e-3)
    weights = trainer.get_weights().result()
    trainer.close()
    return weights


def speed(model_name: str) -> Iterator[str]:
    """Tokens a second of training steps of at least two packs, each prompt once, and peak memory.
    Each row is a process of its own, because one that is out of memory keeps what it has."""
    yield "| tokens a forward | activations | tokens/s | share of the peak | GB |"
    yield "|--:|---|--:|--:|--:|"
    for budget in BUDGETS[model_name]:
        for how in (*ActivationCheckpointing, COMPILED):
            yield _row(model_name, "--row", f"{budget}", how)


def _row(model_name: str, kind: str, *cells: str) -> str:
    """A row of a table, from a process of its own."""
    return _printed([sys.executable, __file__, "--model", model_name, kind, *cells], *cells)


def _printed(command: Sequence[str], *cells: str) -> str:
    """A row that a process prints, or its error behind the first cells."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stderr.strip().splitlines() or ["killed"]
    fault = next((line for line in reversed(lines) if "Error" in line), lines[-1])[:80]
    return done.stdout.strip() or f"| {' | '.join(cells)} | {fault} | | |"


def speed_row(model_name: str, budget: int, how: str) -> str:
    model = random_model(MODELS[model_name], torch.bfloat16 if GPU else torch.float32)
    use_packed_attention(model)
    if how == COMPILED:
        compile_layers(model, ActivationCheckpointing.none)
    else:
        checkpoint_activations(model, ActivationCheckpointing(how))
    return f"| {budget} | {how} | {_measured(model, model_name, budget)[0]} |"


def options(model_name: str) -> Iterator[str]:
    """The same of what saves memory, with the smallest budget: adapters, over weights of 4 bits,
    and AdamW with a state of 8 bits."""
    yield "| what is trained | tokens/s | share of the peak | GB |"
    yield "|---|--:|--:|--:|"
    for name in OPTIONS:
        yield _row(model_name, "--option", name)


def option_row(model_name: str, name: str) -> str:
    dtype, (lora, eight_bit) = Dtype.bfloat16 if GPU else Dtype.float32, OPTIONS[name]
    with TemporaryDirectory() as folder:
        with torch.device("cpu"):
            config = LlamaConfig(**MODELS[model_name])
            LlamaForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(folder)
        model = load_model(folder, dtype, quantization=lora and lora.quantization).eval()
    if lora:
        add_adapter(model, lora, seed=0)
    use_packed_attention(model)
    checkpoint_activations(model, ActivationCheckpointing.selective)
    measured, _ = _measured(model, model_name, BUDGETS[model_name][0], eight_bit)
    return f"| {name} | {measured} |"


def sampling(model_name: str) -> Iterator[str]:
    """Tokens a second of completions in slots, whose forwards a GPU replays, or does not."""
    yield "| slots | forwards | tokens/s | ms a token of each | GB |"
    yield "|--:|---|--:|--:|--:|"
    for slots in SLOTS[model_name]:
        for how in (STARTED, REPLAYED):
            yield _row(model_name, "--slots", f"{slots}", how)


def sampling_row(model_name: str, slots: int, how: str) -> str:
    model = random_model(MODELS[model_name], torch.bfloat16 if GPU else torch.float32)
    prompt, new = LENGTHS[model_name]
    draws = random.Random(0)
    prompts = [draws.choices(range(3, model.config.vocab_size), k=prompt) for _ in range(slots)]
    requests = [
        Request(str(number), k, tuple(prompts[number]), new)
        for number in range(slots // 8)
        for k in range(8)
    ]
    engine = SlotEngine(model, "", slots, BUDGETS[model_name][-1])
    engine.replays = engine.replays and how == REPLAYED
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        list(engine.sample(requests, ""))
        seconds.append(time.perf_counter() - started)
    best = min(seconds)
    memory = f"{torch.cuda.max_memory_allocated() / 1e9:.1f}" if GPU else ""
    done = how if how == STARTED or engine.replays else f"{how}: no"
    return f"| {slots} | {done} | {slots * new / best:,.0f} | {1000 * best / new:.1f} | {memory} |"


def ranks(model_name: str) -> Iterator[str]:
    """The same steps on one GPU and on all, or by two processes. The losses must be equal
    up to rounding."""
    count = torch.cuda.device_count() if GPU else 2
    yield "| processes | last loss | tokens/s | share of each peak | GB each |"
    yield "|--:|--:|--:|--:|--:|"
    for processes in sorted({1, count}):
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        row = [__file__, "--model", model_name, "--rank", f"{count}"]
        yield _printed([*launch, f"--nproc-per-node={processes}", *row], f"{processes}")


def rank_row(model_name: str, count: int) -> str | None:
    """A row for the first rank, None for the others. The batch is that of `count` processes."""
    with together() as joined:
        model = random_model(MODELS[model_name], torch.bfloat16 if GPU else torch.float32)
        use_packed_attention(model)
        checkpoint_activations(model, ActivationCheckpointing.selective)
        budget = BUDGETS[model_name][0]
        cells, loss = _measured(model, model_name, budget, ranks=joined, packs=2 * count)
        return f"| {joined.count} | {loss:.6f} | {cells} |" if joined.is_first else None


def _measured(
    model: Any,
    model_name: str,
    budget: int,
    eight_bit: bool = False,
    ranks: Ranks = ALONE,
    packs: int = 2,
) -> tuple[str, float]:
    """Three cells, from the median of the steps after the first; and the last step's loss."""
    prompt, response = LENGTHS[model_name]
    groups = pairs([(prompt, response, response)] * (packs * budget // (prompt + 2 * response)))
    trainer = build_trainer(model, budget, ranks, OptimizerConfig(1e-5, eight_bit=eight_bit))
    batch, times, loss = trainer.prepare(groups), [], 0.0
    if GPU:  # every rank has built the whole model
        torch.cuda.reset_peak_memory_stats()
    for _ in range(STEPS):
        started = time.perf_counter()
        scored = trainer.forward_backward(batch, MeanLoss())
        trainer.optim_step(1e-5).result()
        times.append(time.perf_counter() - started)
        loss = scored.result().losses.sum().item()
    usage = trainer.usage(batch, median(times[1:]))
    trainer.close()
    share = f"{usage['mfu']:.2f}" if "mfu" in usage else ""
    cells = f"{usage['tokens_per_second']:,.0f} | {share} | {usage['peak_memory_gb']:.1f}"
    return cells, loss


class MeanLoss:
    """The mean negative log-likelihood of tokens; needs no data of the batch."""

    def __call__(self, logps: TokenLogps, members: torch.Tensor) -> Any:
        return -logps.sums().sum(dim=1) / 1000, {}

    def to(self, device: torch.device) -> "MeanLoss":
        return self


def random_model(config: dict[str, Any], dtype: torch.dtype) -> LlamaForCausalLM:
    """The same weights every time, up to the rounding of `dtype`."""
    torch.manual_seed(0)
    with DEVICE:
        model = LlamaForCausalLM(LlamaConfig(**config)).eval()
    torch.nn.Module.to(model, dtype=dtype)  # in place
    return model


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


SECTIONS: dict[str, Callable[[str], Iterator[str]]] = {
    "machine": machine,
    "parity": parity,
    "determinism": determinism,
    "sampling": sampling,
    "options": options,
    "ranks": ranks,
    "speed": speed,
}


def section(name: str, command: Sequence[str]) -> str:
    """A section of the page: what a process prints, or the end of its error."""
    print(f"{name} …", file=sys.stderr, flush=True)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    fault = f"\n\n    failed: {done.stderr.strip()[-2000:]}" if done.returncode else ""
    return f"## {name}\n\n{done.stdout.strip()}{fault}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--model", choices=MODELS, default="1b")
    parser.add_argument("--trl", help="an interpreter that can import trl")
    parser.add_argument("--page", type=Path, default=Path("gpu.md"))
    parser.add_argument("--section", choices=SECTIONS, help="print this section alone")
    parser.add_argument("--row", nargs=2, help="print one row of the section on speed")
    parser.add_argument("--slots", nargs=2, help="print one row of the section on sampling")
    parser.add_argument("--option", choices=OPTIONS, help="print one row of the section on options")
    parser.add_argument("--rank", type=int, help="print the row of this rank of several")
    chosen = parser.parse_args()
    if chosen.row:
        print(speed_row(chosen.model, int(chosen.row[0]), chosen.row[1]))
        return
    if chosen.slots:
        print(sampling_row(chosen.model, int(chosen.slots[0]), chosen.slots[1]))
        return
    if chosen.rank:
        if row := rank_row(chosen.model, chosen.rank):
            print(row)
        return
    if chosen.option:
        print(option_row(chosen.model, chosen.option))
        return
    if chosen.section:
        for line in SECTIONS[chosen.section](chosen.model):
            print(line, flush=True)
        return
    again = [sys.executable, __file__, "--model", chosen.model, "--section"]
    commands = {name: [*again, name] for name in SECTIONS}
    if chosen.trl:
        beside = [sys.executable, str(Path(__file__).with_name("dpo_throughput.py"))]
        settings = ["--trl", chosen.trl, "--only", "cost", "--no-flops"]
        settings += ["--device", DEVICE.type, *(["--model", "smollm2"] if GPU else [])]
        commands["beside TRL"] = [*beside, *settings]
    page = f"# Temper on {DEVICE.type}, {chosen.model}\n"
    for name, command in commands.items():
        page += f"\n{section(name, command)}"
        chosen.page.write_text(page)  # whatever becomes of the next section
    print(page)


if __name__ == "__main__":
    main()
