"""``sample_completions``: what a model answers to prompts."""

from pipeline import Metrics, Output, TemperError, step
from steps.data.jsonl import write_json_lines
from steps.data.ledger import Entry, Tally
from steps.data.parquet import read_rows
from steps.data.reasons import MalformedRow
from steps.data.rendering import Chat
from steps.data.rows import PromptRow
from steps.data.tables import from_record
from steps.generation.config import SamplingConfig
from steps.kinds import Completions, Model, Prompts
from steps.training.config import Dtype


@step(makes=Completions)
def sample_completions(
    out: Output,
    prompts: Prompts,
    model: Model,
    config: SamplingConfig = SamplingConfig(),
    dtype: Dtype = Dtype.float32,
) -> Metrics:
    """Write ``completions.jsonl``: each of the prompts with its ``completions``.

    Prompts are rendered as the training data is, with their tools and template arguments. One that
    the model's chat template refuses is left out, and told.

    Raises:
        TemperError: the template refuses every prompt.
    """
    from steps.data.rendering import load_tokenizer
    from steps.data.tokenizing import tokenization, tokenize_prompts
    from steps.generation.sampling import sample
    from steps.training.models import load_model
    from steps.training.ranks import together

    rows = [from_record(PromptRow, record) for record in read_rows(prompts.path)]
    tokenizer = load_tokenizer(model.path)
    chats = [Chat(row.prompt, row.tools, row.template_kwargs) for row in rows]
    asked: list[tuple[PromptRow, list[int]]] = []
    tally = Tally()
    for row, ids in zip(rows, tokenize_prompts(tokenization(tokenizer), chats), strict=True):
        if isinstance(ids, MalformedRow):
            tally.add(Entry.dropped("", "", row.row, ids))
        else:
            asked.append((row, ids))
            tally.add(Entry("", "", row.row, "kept"))
    if not asked:
        raise TemperError(f"no prompt of {prompts.step} is left: {tally.worst_reasons()}")
    prompt_ids = [ids for _, ids in asked]
    with together() as ranks:
        loaded = load_model(model.path, dtype)
        texts = sample(loaded, tokenizer, prompt_ids, config, out.progress, ranks)
    if not ranks.is_first:
        return {}
    completed = (
        {**vars(row), "completions": completions}
        for (row, _), completions in zip(asked, texts, strict=True)
    )
    write_json_lines(out.path / "completions.jsonl", completed)
    return {"prompts": len(asked), "completions": sum(map(len, texts)), **tally.metrics()}
