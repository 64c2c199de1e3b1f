"""Generation: sample completions from a model, with their log-probabilities.

Begin with ``engine``, which says what a sampler is asked for and what it gives. ``slots`` is the
engine of this process: ``running`` has what its slots draw, and where a completion ends; ``cache``
has their keys and values, ``draws`` the random numbers, ``cuda_graphs`` its forwards on a GPU, and
``weights`` replaces what it samples with. ``alone`` is the slow way for models that take no slots,
``in_process`` what both ways share, and ``choosing`` tries which way is right. ``sampling`` finds
the tokens that end a completion, draws completions of prompts, as ``config`` says, and puts them
together by row. ``engine_config`` says who draws: this process, or engines elsewhere, which are in
``remote``; ``engines_by_name`` is for configs.

Uses ``steps.scoring``, ``steps.models`` and ``steps.shared.checks``.
"""
