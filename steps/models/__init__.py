"""Models as folders, and the processes and devices that run them.

Begin with ``folders``, which reads and writes models. ``importing`` converts published models to
folders, ``adapters`` adds low-rank adapters, ``adapted`` writes folders with these alone and merges
them, ``quantized`` rounds the weights under them to 4 bits, ``positions`` checks the length of
sequences, ``activation_checkpointing`` recomputes activations, ``value_head`` the head of reward
models. ``ranks`` are the processes that run one step together, ``sharded_tensors`` the tensors that
they share. ``call_queue`` is the thread that runs all work on a model, ``workplace`` holds a step's
folders and callbacks. ``folder_check`` checks a model's folder before a plan; it and ``config`` are
importable without torch.

Uses torch and transformers; of this project nothing but ``steps.shared.checks``,
``steps.shared.execution_detail``, ``steps.shared.experts`` and ``steps.shared.matmul``.
"""
