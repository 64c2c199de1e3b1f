"""Models as folders, and the machines that they lie on.

Begin with ``folders`` (how a model is read and written; ``writing`` is what is said of a full
disk). ``importing`` makes a folder of what people publish, ``adapters`` puts low-rank matrices
beside its layers, ``positions`` says how long a sequence it takes, ``recomputing`` keeps less of a
forward for its backward. ``ranks`` are the processes that
do one step together, ``pieces`` the tensors that are spread over them, ``queue`` the thread in
which work on a model is done, ``workplace`` the folders of a step and whom it answers to.
``config`` is importable without torch.

Uses torch and transformers; of this project nothing but ``steps.shared.checks`` and
``steps.shared.execution_detail``.
"""
