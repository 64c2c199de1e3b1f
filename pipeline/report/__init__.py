"""The report: one HTML file that shows what runs did, how it went and what differed.

It knows no ML. What there is to see of an artifact, its kind says (:mod:`pipeline.views`); the rest
is in records of runs and in manifests.

- :mod:`pipeline.report.story`: what is told, gathered from a store;
- :mod:`pipeline.report.figures`, :mod:`pipeline.report.graph`: pictures, as SVG;
- :mod:`pipeline.report.page`: the file. It loads nothing, and what anybody but Temper wrote (names,
  settings, texts, Markdown) is shown as text.
"""

from pipeline.report.page import render
from pipeline.report.story import Story, story_of_artifacts, story_of_runs

__all__ = ["Story", "render", "story_of_artifacts", "story_of_runs"]
