"""How steps and plans look in a notebook: small tables, with everything escaped."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from pipeline.why import leaves

if TYPE_CHECKING:
    from pipeline.plan import Plan
    from pipeline.step import Step

_LONGEST = 400
_CELL = Markup('<{tag} style="text-align:left;vertical-align:top">{text}</{tag}>')


def step_html(step: "Step") -> str:
    """What a step is: its name, what it makes, from what, with which settings."""
    recipe = step.recipe(lambda reference: str(reference))
    found = dict(leaves(recipe["arguments"])) if isinstance(recipe, dict) else {}
    rows = [(path.removesuffix(".$input"), _short(value)) for path, value in found.items()]
    makes = f"makes {step.kind.__name__}, fingerprint {step.fingerprint[:8]}"
    return Markup("<div><b>{}</b> <small>{}</small>{}</div>").format(
        step.name, makes, _table(("argument", "value"), rows)
    )


def plan_html(plan: "Plan") -> str:
    """Every step with its state and why."""
    from pipeline.board import display_names

    names = display_names(plan)
    rows = [
        (names[planned.step.fingerprint], planned.state.value, planned.reason)
        for planned in plan.steps
    ]
    return _table(("step", "plan", "why"), rows)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    head = _row("th", headings)
    body = Markup("").join(_row("td", row) for row in rows)
    return Markup("<table><thead>{}</thead><tbody>{}</tbody></table>").format(head, body)


def _row(tag: str, texts: Sequence[str]) -> Markup:
    from pipeline.report.page import clean

    cells = Markup("").join(
        _CELL.format(tag=Markup(tag), text=escape(clean(text))) for text in texts
    )
    return Markup("<tr>{}</tr>").format(cells)


def _short(value: object) -> str:
    from pipeline.record import shown

    text = shown(str(value))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
