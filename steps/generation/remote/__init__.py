"""Engines in other processes: they get the weights, and return completions.

    trainer ── weights, digest ──► engine ── token ids, logps, digest ──► rollouts
        └── logps of a probe, compared after every update ──┘

Begin with ``syncing``, which sends new weights to every engine. It uses an engine only after the
engine has sampled probe prompts, and the trainer has computed the same log-probabilities.
``own_engine`` is the client of our own server (``temper engine``), and puts it in the place of the
engine of this process. ``vllm_client`` is the client of vLLM's HTTP interface, with the settings of
``vllm_config``. ``calling`` sends one HTTP request, checks its reply, and turns errors into one
sentence.

``synthesis`` takes no part in this: it asks any OpenAI-compatible address for completions as text,
as ``synthesis_config`` says.

Uses ``steps.generation``.
"""
