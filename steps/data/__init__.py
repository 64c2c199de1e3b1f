"""Preference data: rows in, verified token sequences out.

`sources` opens files and Hub datasets at any row (`readers` know their bytes), `formats` turn a
record into a row (`rows`) or say why not (`reasons`), `mixture` draws from several sources,
`splits` decides what is held out, `overlap` what says the same, and `loading` puts them together:
shards of rows (`tables`), with a `ledger` of what became of each, made chunk by chunk
(`shard_ledger`).

`rendering`, `spans` and `encoding` turn rows into tokens with masks and `lengths` cuts them;
`tokenizing` puts them together for conversations and completions, `pairs` for preferences, `texts`
for what has no turns. `token_shards` and `workers` do that to files, `tokens` to an artifact, and
`view` shows a row of it. `parquet` reads and writes the files between steps, `arithmetic` makes the
small verifiable task. Nothing here imports torch or `pipeline`.
"""
