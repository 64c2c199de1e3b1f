"""Engines in other processes: they get the weights, and return completions.

    trainer ── weights, digest ──► engine ── token ids, logps, digest ──► rollouts
        └── logps of a probe, compared after every update ──┘

Begin with ``syncing``, which sends new weights to every engine. It uses an engine only after the
engine has sampled probe prompts, and the trainer has computed the same log-probabilities.
``engine_server`` is our own engine in another process and ``own_engine`` its client. ``connecting``
puts it in the place of the engine of this process. ``vllm_client`` is the client of vLLM's HTTP
interface, with the settings of ``vllm_config``. ``several`` divides requests among engines.
``calling`` sends one HTTP request and turns its errors into one sentence. ``as_json`` checks the
replies.

Uses ``steps.generation``.
"""
