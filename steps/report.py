"""``report``: results, and all they were made from, as one HTML file to hand on."""

from pipeline import Artifact, Metrics, Output, step


@step
def report(out: Output, results: dict[str, Artifact], title: str = "Report") -> Metrics:
    """Write ``report.html``, which loads nothing from anywhere.

    It tells how its inputs came to be as the store has it when the step runs. Of a run that is
    over, ``temper report`` tells more: also what failed, was cached, and with which command.

    Args:
        results: what to report on, by the names to show.
    """
    from pipeline.show.report import render, story_of_artifacts

    manifests = {name: out.origin(result) for name, result in results.items()}
    story = story_of_artifacts(manifests, out.catalog, title)
    (out.path / "report.html").write_text(render(story), "utf-8")
    return {}
