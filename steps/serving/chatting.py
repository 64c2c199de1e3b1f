"""``temper chat``: talk with a model, side by side with the model from which training started.

On a terminal this is a conversation, in which each model remembers its own answers. With a prompt
from ``--prompt`` or standard input it is a filter: only the answer goes to standard output. A model
without a chat template continues the text instead.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pipeline import TemperError
from pipeline.base.text import clean, visible
from pipeline.show.terminal import make_console
from steps.generation.config import SamplingConfig
from steps.models.config import Dtype
from steps.serving.named_models import ModelName, NamedModel, StoreUrl, opened, told_as_errors

if TYPE_CHECKING:
    from steps.data.rows.rows import Message
    from steps.serving.replies import Speaker

OnPiece = Callable[[str], None]
HELP = "/clear begins anew, /exit or Ctrl-D ends, Ctrl-C stops an answer"


def chat(
    name: ModelName,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="The prompt to answer; - reads it.")
    ] = None,
    beside: Annotated[
        str | None, typer.Option(metavar="NAME|DIR", help="Another model that answers, too.")
    ] = None,
    alone: Annotated[bool, typer.Option("--alone", help="Compare with no other model.")] = False,
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="The most tokens.")] = 512,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Probability mass of nucleus sampling.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="How many of the likeliest are drawn; 0: all.")] = 0,
    min_p: Annotated[float, typer.Option(help="Least share of the largest probability.")] = 0.0,
    seed: Annotated[int, typer.Option(help="The seed of sampling.")] = 0,
    dtype: Annotated[
        Dtype | None, typer.Option(help="Dtype of weights; bfloat16 on a GPU, else float32.")
    ] = None,
    store: StoreUrl = "store",
) -> None:
    """Talk with a model, by default beside the one that its training began from.

    With a prompt, from --prompt or standard input, print the answer and end.
    """
    with ExitStack() as stack, told_as_errors():
        cuts = {"top_p": top_p, "top_k": top_k, "min_p": min_p}
        drawing = SamplingConfig(max_new_tokens, temperature, 1, seed, **cuts)  # type: ignore[arg-type]
        once = _prompt(prompt)
        models = [stack.enter_context(opened(name, store))]
        if beside is not None:
            models.insert(0, stack.enter_context(opened(beside, store)))
        elif models[0].before is not None and once is None and not alone:
            try:
                models.insert(0, stack.enter_context(opened(models[0].before, store)))
            except TemperError as error:  # not fatal, as the user did not ask for this model
                line = f"alone, without the model before: {error}"
                make_console(stderr=True).print(Text(visible(line), "yellow"), soft_wrap=True)
        from steps.serving.replies import Speaker  # torch is slow to import

        talks = [_Talk(model, Speaker(model.folder, dtype), drawing, system) for model in models]
        if once is not None:
            _answer_once(talks, once)
        else:
            _converse(make_console(), talks)


@dataclass
class _Talk:
    """A conversation with one model."""

    model: NamedModel
    speaker: "Speaker"
    drawing: SamplingConfig
    system: str | None
    messages: "list[Message]" = field(default_factory=list)
    said: str = ""
    """The part of the current answer that the model has written so far."""

    def __post_init__(self) -> None:
        if not self.speaker.has_template and self.system is not None:
            raise TemperError(f"{self.model.name} has no chat template, so it takes no --system")
        self.clear()

    def clear(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def ask(self, prompt: str, on_piece: OnPiece) -> None:
        """Let the model answer; ``said`` grows with each piece. A question without an answer does
        not become part of the conversation.

        Raises:
            ValueError: the model cannot answer this prompt, for example because it is too long.
        """
        self.said, speaker = "", self.speaker

        def hear(piece: str, drawn: object) -> None:
            self.said += piece
            on_piece(piece)

        if not speaker.has_template:
            speaker.write(speaker.tokens_of(prompt), self.drawing, hear, continues=True)
            return
        question: Message = {"role": "user", "content": prompt}
        try:
            speaker.write(speaker.prompt_of([*self.messages, question]), self.drawing, hear)
        finally:  # an interrupted answer stays in the conversation
            if self.said:
                self.messages += [question, {"role": "assistant", "content": self.said}]


def _prompt(given: str | None) -> str | None:
    """The single prompt to answer; ``None`` for a conversation on a terminal.

    Raises ValueError or TemperError if there is none, or it is no text in UTF-8.
    """
    if given == "-" or (given is None and not sys.stdin.isatty()):
        given = sys.stdin.read().removesuffix("\n")
    if given is not None and not given.strip():
        raise TemperError("the prompt is empty; write one after --prompt, or to standard input")
    if given is not None:
        given.encode()  # Python reads bytes that are no UTF-8 as what cannot be encoded
    return given


def _answer_once(talks: Sequence[_Talk], prompt: str) -> None:
    """Print each model's answer to standard output, under its name if there are several."""
    shown = clean if sys.stdout.isatty() else str
    for talk in talks:
        if len(talks) > 1:
            print(f"{'' if talk is talks[0] else chr(10)}== {visible(talk.model.name)}")
        talk.ask(prompt, lambda piece: print(shown(piece), end="", flush=True))
        print()


def _converse(console: Console, talks: Sequence[_Talk]) -> None:
    """Read questions and print answers until the user ends the conversation."""
    names = " beside ".join(visible(talk.model.name) for talk in reversed(talks))
    console.print(Text(f"{names}  ({HELP})", "dim"))
    for talk in talks:
        if not talk.speaker.has_template:
            line = f"{visible(talk.model.name)} has no chat template: it continues what you write"
            console.print(Text(line, "yellow"))
    while True:
        try:
            asked = console.input(Text("> ", "bold")).strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return
        if asked == "/exit":
            return
        if asked == "/clear":
            for talk in talks:
                talk.clear()
        elif re.fullmatch(r"/[a-z?]+", asked):
            console.print(Text(f"there is no {asked}: {HELP}", "yellow"))
        elif asked:
            _answer(console, talks, asked)


def _answer(console: Console, talks: Sequence[_Talk], asked: str) -> None:
    for talk in talks:
        talk.said = ""
    with _shown(console, talks) as on_piece:
        for talk in talks:
            try:
                talk.ask(asked, on_piece)
            except ValueError as error:
                talk.said = f"({error})"
                on_piece(talk.said)
            except KeyboardInterrupt:
                break


@contextmanager
def _shown(console: Console, talks: Sequence[_Talk]) -> Iterator[OnPiece]:
    """Show answers while models write them: one model's as running text, two models' in columns."""
    if len(talks) == 1:
        yield lambda piece: console.out(clean(piece), end="", highlight=False)
        console.print("\n")
        return
    # Live cannot scroll, so it shows what fits; the whole table is printed at the end
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield lambda piece: live.update(_columns(talks), refresh=True)
    console.print(_columns(talks))


def _columns(talks: Sequence[_Talk]) -> Table:
    table = Table(box=None, padding=(0, 2, 1, 0), expand=True, header_style="dim")
    for talk in talks:
        table.add_column(visible(talk.model.name), ratio=1, overflow="fold")
    table.add_row(*(Text(clean(talk.said)) for talk in talks))
    return table
