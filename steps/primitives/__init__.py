"""The calls of which a training loop consists, on any backend: for people who write loops.

    client = Local(model, optimizer, loss)
    client.forward_backward(batch) ; client.optim_step()

Begin with ``local``, the client, whose results are ``pending``; ``remote`` is that of a server.
``own_modules`` computes a module and a loss of the user's own on torch, ``own_functions`` a
function of weights on JAX. Temper's trainers (`steps.training.trainer.Trainer`, and those of the
other backends) stand behind the same client, with packed groups in the place of logits.
``backends_compared`` compares what two backends give for one batch.

Uses ``steps.training``, ``steps.tinker_backend``, and on JAX ``steps.jax_backend``.
"""
