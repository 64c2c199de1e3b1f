"""Names of artifacts (``naming``): ``tags``, ``result_names``; as inputs (``recorded``)."""
