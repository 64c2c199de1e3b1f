"""What differs between two artifacts (``compare``), their logs (``log_diff``) or two runs
(``run_diff``)."""
