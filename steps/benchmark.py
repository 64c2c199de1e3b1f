"""``benchmark``: the steps that ask a model the questions of a benchmark, and score its answers."""

from dataclasses import replace
from pathlib import Path

from pipeline import File, Input, Step, TemperError
from steps.answer_benchmark import answer_benchmark
from steps.ask_benchmark import ask_benchmark
from steps.benchmarks.config import AnsweringConfig, BenchmarkConfig, BenchmarkName
from steps.fetch_benchmark import fetch_benchmark
from steps.generation.engine_config import EngineConfig, OwnEngine
from steps.score_benchmark import score_benchmark


def benchmark(
    model: Step | Input,
    name: str,
    config: BenchmarkConfig = BenchmarkConfig(),
    answering: AnsweringConfig = AnsweringConfig(),
    engine: EngineConfig = OwnEngine(),
) -> Step:
    """The step that scores the model's answers.

    Args:
        name: ``TASK@lm-eval:VERSION#COMMIT``, a task of lm-eval on its data set at a commit;
            ``FOLDER@lm-eval`` or ``FOLDER@inspect-ai``, tasks of one's own in the suite that is
            installed.

    Raises:
        TemperError: the name has another form, or a folder is not there.
    """
    try:
        named = BenchmarkName.parse(name)
    except ValueError as error:
        raise TemperError(str(error)) from error
    suite = named.suite
    if named.commit is not None:
        tasks: Step | File = fetch_benchmark(named.name, suite, named.commit)
        config = config if config.tasks else replace(config, tasks=[named.name])
    elif "://" in named.name or Path(named.name).is_dir():
        tasks = File(named.name)
    else:
        raise TemperError(
            f"benchmark {name!r}: there is no folder {named.name!r}, and a task of lm-eval itself "
            "needs #COMMIT behind it, all 40 digits of the commit of the data set that it reads"
        )
    questions = ask_benchmark(tasks, suite, config)
    answers = answer_benchmark(questions, model, answering, engine)
    return score_benchmark(answers, tasks, suite, config)
