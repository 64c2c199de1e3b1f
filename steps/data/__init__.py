"""Preference data: rows in, verified token sequences out.

`sources` reads records, `preferences` turns one record into one pair (or says why not), `splits`
decides what is held out, `templating` renders and tokenises, `parquet` holds the files between
steps, `arithmetic` makes the small verifiable task. Nothing here imports torch or `pipeline`.
"""
