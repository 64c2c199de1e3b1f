"""Names of artifacts: ``tags`` that users gave, and ``EXPERIMENT/RESULT`` (``result_names``)."""
