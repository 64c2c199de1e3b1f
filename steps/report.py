"""``report``: show results and their lineage in one HTML file that can be shared."""

from pipeline import Artifact, Metrics, Output, step


@step
def report(out: Output, results: dict[str, Artifact], title: str = "Report") -> Metrics:
    """Write ``report.html``, which loads nothing from elsewhere.

    The report shows the lineage of its inputs, as the store has it while this step runs. After a
    run, ``temper report`` shows more: also failures, cached steps and the command.

    Args:
        results: the artifacts to report on, by the names that the report shows.
    """
    from pipeline.show.report.page import render
    from pipeline.show.report.report_model import story_of_artifacts

    manifests = {name: out.origin(result) for name, result in results.items()}
    story = story_of_artifacts(manifests, out.catalog, title)
    (out.path / "report.html").write_text(render(story), "utf-8")
    return {}
