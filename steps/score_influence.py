"""``score_influence``: which training pairs lower a model's held-out loss, and which raise it."""

from pipeline import Metrics, Output, step
from steps.core_adapters.own_tokens import tokens_for
from steps.data.rows.jsonl import write_json_lines
from steps.data.rows.parquet import iter_rows
from steps.jax_backend.config import InfluenceConfig
from steps.kinds import Influences, Model, PairTokens


@step(makes=Influences, needs_packages=["jax"])
def score_influence(
    out: Output,
    tokens: PairTokens,
    held_out: PairTokens,
    model: Model,
    config: InfluenceConfig = InfluenceConfig(),
) -> Metrics:
    """Write ``influences.jsonl``: of each pair of ``tokens``, by how much a step on it at a rate of
    1 would lower the mean loss of ``held_out``, to first order; the most harmful rows first. With
    ``config.projection`` also ``gradients.safetensors``: the projected gradients ``rows`` and
    ``held_out`` of the losses of pairs, in the order of ``tokens`` and of ``held_out``.

    Args:
        held_out: trusted pairs. Their gradient is the direction in which the model should move.
        model: the model whose gradients are compared; before training, the model that training
            starts from.
    """
    from safetensors.torch import save_file

    from steps.jax_backend.influence import project_rows, read_rows_of, score_rows

    folders = [tokens_for(model, pairs) for pairs in (tokens, held_out)]
    rows, trusted = (read_rows_of(model.path, iter_rows(folder)) for folder in folders)
    if config.projection:
        gradients = project_rows(model.path, [*rows, *trusted], config, out.progress)
        of_rows, of_trusted = gradients.split([len(rows), len(trusted)])
        kept = {"rows": of_rows.clone(), "held_out": of_trusted.clone()}
        save_file(kept, out.path / "gradients.safetensors")
        influences = (of_rows.double() @ of_trusted.double().mean(0)).tolist()
    else:
        influences = score_rows(model.path, rows, trusted, config, out.progress).tolist()
    found = [
        {"row": r.row, "pair": r.group_id, "influence": i}
        for r, i in zip(rows, influences, strict=True)
    ]
    write_json_lines(out.path / "influences.jsonl", sorted(found, key=lambda r: r["influence"]))
    return {
        "rows": len(found),
        "harmful": sum(influence < 0 for influence in influences) / len(found),
        "mean": sum(influences) / len(found),
    }
