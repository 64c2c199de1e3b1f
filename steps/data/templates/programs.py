"""Chat templates as programs, which are read and not run."""

from jinja2 import TemplateError, nodes


def program_of(template: str) -> nodes.Template | None:
    """The program of a template; None for one that refuses every row, and each row says so."""
    from transformers.utils.chat_template_utils import _compile_jinja_template  # slow to import

    try:
        return _compile_jinja_template(template).environment.parse(template)
    except (TemplateError, SyntaxError):
        return None


def is_generation(block: nodes.CallBlock) -> bool:
    """Whether a block is `{% generation %}`: a call of the extension that tracks it."""
    return getattr(block.call.node, "name", "") == "_generation_support"
