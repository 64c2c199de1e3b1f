"""Code that every package of ``steps/`` may use. It depends on nothing else.

``checks`` validates config dataclasses, ``execution_detail`` marks settings and code that cannot
change a result, ``markdown`` escapes untrusted text, ``named`` finds the losses or checkers in a
folder, ``accelerators`` holds figures from vendors' data sheets, ``common_prefix`` compares
sequences, ``harm`` notices a model that training has harmed. On a CPU, ``matmul`` computes the
linear layers of models and ``experts`` their mixtures of experts; these two alone use torch.
``padded_rows`` is the number of rows of such a product. ``counts`` multiplies a share by a whole
number. ``asked_address`` asks a model behind an OpenAI-compatible address, and ``kept_lines`` keeps
what was paid for.
"""
