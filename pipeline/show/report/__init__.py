"""The report: one HTML file that shows what runs did, how it went and what differed.

It knows no ML. What there is to see of an artifact, its kind says (:mod:`pipeline.show.views`); the
rest is in records of runs and in manifests.

``story`` gathers what is told from a store, ``earlier`` what other runs made; begin there. ``page``
makes the file: it loads nothing, and what anybody but Temper wrote (names, settings, texts,
Markdown) is shown as text. ``headline`` says in one sentence what changed, ``scoreboard`` has the
results as tables, ``sweeps`` what settings do, ``trends`` the curves, ``texts`` the samples,
``costs`` hardware and seconds. ``figures`` (on ``axes``) and ``graph`` draw pictures as SVG,
``wording`` writes numbers and names. ``page.html.j2`` is the layout: a column of a table is added
there. ``server`` serves pages on this machine for ``temper ui``.
"""

from pipeline.show.report.page import render
from pipeline.show.report.story import Story, story_of_artifacts, story_of_runs

__all__ = ["Story", "render", "story_of_artifacts", "story_of_runs"]
