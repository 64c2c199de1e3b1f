"""Other weights beside those of the policy: a reference's, or their own average.

``live_reference`` is the reference's model, for losses that need its whole distribution over the
vocabulary at each token (`needs_divergence`), and the readout of a policy that is compared with it.
``token_kl`` computes log-probabilities and KL(π_ref ‖ π) together, from the states of two models.
``averaging`` keeps the moving average of weights. Uses ``steps.scoring`` and ``steps.models``, and
``trainer`` and ``optimizer`` of ``steps.training``.
"""
