"""Comparing: which of two models answers better, by a judge that sees both answers.

Begin with ``comparing``, which asks about each pair in both orders and counts. ``llm_pair_judge``
asks a language model; ``pair_judges`` knows judges by name. What a judge is given is defined in
``steps.checking.compared``.

Importable without torch, and uses ``steps.checking`` and ``steps.shared`` alone.
"""
