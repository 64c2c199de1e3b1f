"""``temper fit``: check whether a step fits a TPU slice or GPUs, without any."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from steps.models.config import ActivationCheckpointing, Dtype

if TYPE_CHECKING:
    from steps.jax_backend.fitting.fit import Fit

GIB = 2**30


class FittedStep(StrEnum):
    """The steps that this command can compile."""

    train_dpo = "train_dpo"
    train_reference_free = "train_reference_free"
    train_kto = "train_kto"
    train_reward_model = "train_reward_model"
    train_sft = "train_sft"
    train_online = "train_online"
    reference_logprobs = "reference_logprobs"

    @property
    def scored_share(self) -> float:
        """Of a pack's tokens, how many are scored by default: half; in SFT and GRPO all, as sizes
        are rounded up to quarters and a group's answers are long beside its prompt; of rewards,
        which have one for a response, a quarter, the least."""
        every = (FittedStep.train_sft, FittedStep.train_online)
        return 1.0 if self in every else 0.25 if self is FittedStep.train_reward_model else 0.5


def _named_step(name: str) -> FittedStep:
    if name not in [*FittedStep]:
        raise typer.BadParameter(f"there is no step {name!r}; known: {', '.join(FittedStep)}")
    return FittedStep(name)


def fit(
    step: Annotated[
        str,  # the names of an enumeration would make one line, wider than a terminal
        typer.Argument(metavar="STEP", help=f"The step to compile: {', '.join(FittedStep)}."),
    ],
    on: Annotated[str, typer.Option(help="A TPU topology, such as v5e:2x4, or GPUs: h100:8.")],
    model: Annotated[Path, typer.Option(help="A model folder, or its config.json alone.")],
    tokens_per_forward: Annotated[
        int, typer.Option(min=1, help="The tokens of a device's pack.")
    ] = 2048,
    scored: Annotated[
        int | None, typer.Option(min=1, help="Scored tokens; default: the step's share.")
    ] = None,
    dtype: Dtype = Dtype.bfloat16,
    activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing.full,
    slices: Annotated[int, typer.Option(min=1, help="How many such slices share the work.")] = 1,
    kernel: Annotated[bool, typer.Option(help="Attention as a TPU kernel of our own.")] = False,
) -> None:
    """Compile a step of backend=jax for TPUs or GPUs that need not be present; print its memory and
    whether it fits.

    This proves that the step compiles, is sharded over the devices and fits. It does not measure
    speed or check numbers on them. Of train_online the shapes are compiled; backend=jax does
    not train online.
    """
    fitted = _named_step(step)
    if (scored or 0) > tokens_per_forward:
        raise typer.BadParameter(f"scored is {scored}, of {tokens_per_forward} tokens_per_forward")
    from steps.jax_backend.fitting.fit import Step, TooLarge, compile_step  # slow to import
    from steps.jax_backend.static_batches import scored_size, tokens_size

    tokens = tokens_size(tokens_per_forward, tokens_per_forward, kernel)
    counted = scored_size(scored or int(tokens * fitted.scored_share), tokens)
    trains = fitted is not FittedStep.reference_logprobs
    recomputed = activation_checkpointing
    rewards = fitted is FittedStep.train_reward_model
    wanted = Step(
        tokens, counted, dtype, trains, recomputed=recomputed, kernel=kernel, rewards=rewards
    )
    try:
        found = compile_step(model, on, wanted, slices)
    except TooLarge as error:
        typer.echo(f"{on}: it does not fit: {error}")
        raise typer.Exit(1) from error
    except (ValueError, FileNotFoundError) as error:
        raise typer.BadParameter(str(error)) from error
    typer.echo(report(found, wanted.tokens, wanted.scored))
    if found.fits is False:
        raise typer.Exit(1)


def report(found: "Fit", tokens: int, scored: int) -> str:
    """The report as text."""
    lines = [
        f"{found.topology}: {found.chips} devices, {found.parameters / 1e9:.3f} B parameters, a "
        f"pack of {tokens} tokens ({scored} scored) a device",
        f"{'program':<10}{'arguments':>12}{'results':>10}{'working':>10}{'beside it':>11}"
        f"{'in all':>10}  GiB a device; collectives in its text; CPU s to compile",
    ]
    for p in found.programs:
        given = p.outputs - p.aliased
        sizes = (p.arguments, given, p.temporaries, found.beside(p), p.peak + found.beside(p))
        row = "".join(
            f"{size / GIB:>{width}.2f}"
            for size, width in zip(sizes, (12, 10, 10, 11, 10), strict=True)
        )
        said = ", ".join(f"{n} {name}" for name, n in sorted(p.collectives.items())) or "none"
        lines.append(f"{p.name:<10}{row}  {said}; {p.seconds:.0f}")
    lines.append(f"a step of {found.chips} packs takes {found.flops / 1e12:.1f} TFLOP")
    limit = "of a memory that is not known here"
    if found.limit is not None:
        limit = f"of {found.limit / GIB:.0f}: {'it fits' if found.fits else 'it does not fit'}"
    return "\n".join([*lines, f"at most {found.peak / GIB:.2f} GiB a device {limit}"])


if __name__ == "__main__":
    typer.run(fit)
