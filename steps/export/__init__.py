"""Export: what is handed over with a model, and in which form.

``card`` writes the model card; begin there. ``training_curves`` and ``made_with`` are what it shows
besides numbers. ``handed_over`` writes all weights or adapters alone, ``gguf_file`` one GGUF file
with the tokenizer that ``gguf_tokenizer`` describes. ``config`` names the forms.

Uses the configs of ``steps.training`` and ``steps.losses``, which the card prints, ``steps.models``
and the tokenizers of ``steps.data``.
"""
