"""The report: one HTML file that shows what runs did, how it went and what differed.

It knows no ML. The kind of an artifact defines how to show it (:mod:`pipeline.show.views`);
everything else comes from run records and manifests.

``report_model`` gathers the content of a report from the store, ``earlier_runs`` adds results of
earlier runs; begin there. ``page`` renders the file: the page loads nothing, and text that Temper
did not write (names, settings, samples, Markdown) is escaped. ``headline`` states in one sentence
what changed, ``scoreboard`` has the tables of results, ``sweeps`` metrics over settings, ``trends``
the curves, ``texts`` the samples, ``costs`` hardware and seconds. ``figures`` and ``graph`` draw
SVG, ``wording`` formats numbers and names. ``page.html.j2`` is the layout; add a column of a table
there. ``server`` serves pages on this machine for ``temper ui``.
"""
