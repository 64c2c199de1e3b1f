"""``merge_models``: one model from the weights of several, without training."""

from pipeline import Metrics, Output, step
from steps.export.merging import Linear, MergeMethod
from steps.kinds import Model


@step(makes=Model, estimate="steps.step_needs:merges_models")
def merge_models(
    out: Output,
    models: list[Model],
    method: MergeMethod = Linear(),
    base: Model | None = None,
) -> Metrics:
    """Write a model folder, and ``README.md``, a card that names the parents.

    Snapshots of one run can be merged, too.

    Args:
        models: models of one shape with one tokenizer; the first one's config and templates are
            taken.
        method: :class:`~steps.export.merging.Linear`, ``Slerp``, ``TaskArithmetic``, ``Ties`` or
            ``Dare``.
        base: the model that all were trained from, for task vectors.
    """
    from steps.export.card import Ancestor
    from steps.export.merging import merge, merge_card

    named = {f"models[{index}]": model for index, model in enumerate(models)}
    paths = {name: model.path for name, model in named.items()}
    metrics = merge(paths, base and base.path, method, out.path, out.progress)
    every = named if base is None else {**named, "base": base}
    parents = [Ancestor(name, model.step, model.digest) for name, model in every.items()]
    (out.path / "README.md").write_text(merge_card(method, parents), "utf-8")
    return metrics
