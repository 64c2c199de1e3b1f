"""Engines in other processes: how weights get there, and how completions come back.

    trainer ── weights, digest ──► engine ── token ids, logps, digest ──► rollouts
        └── logps of a probe, compared after every hand-over ──┘

Begin with ``syncing``: new weights go to every engine, and no engine is believed before it has
drawn probe prompts with the log-probabilities that the trainer gives these tokens.
``engine_server`` is an engine of our own in another process, ``own_engine`` its client, and
``connecting`` lets it take the place of the engine of this process. ``vllm_client`` speaks vLLM's
HTTP interface, as ``vllm_config`` says. ``several`` shares requests among engines. ``calling``
sends one HTTP request, and says in one sentence what went wrong; ``as_json`` checks what comes
back.

Uses ``steps.generation``.
"""
