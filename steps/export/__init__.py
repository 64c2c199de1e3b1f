"""Export: models in the forms in which they are published, with a model card.

Begin with ``card``, which writes the model card. ``training_curves`` draws its curves, and
``versions`` lists versions and hardware. ``published_folder`` writes a Hugging Face folder with all
weights or with adapters only. ``gguf_file`` writes a GGUF file, with the tokenizer from
``gguf_tokenizer``; ``gguf_kinds`` lists what it can hold. ``merging`` averages models.
``checked_export`` compares an export with its original. ``config`` defines the choices.

Uses the configs of ``steps.training`` and ``steps.losses``, which the card prints,
``steps.models``, the tokenizers of ``steps.data``, and the samples of ``steps.generation``.
"""
