"""The reference's model beside the policy, for losses that need its whole distribution over the
vocabulary at each token (`needs_divergence`).

``token_kl`` computes log-probabilities and KL(π_ref ‖ π) together, from the states of two models.
``live_reference`` is the second model, and the readout of a policy that is compared with it. Begin
there. Uses ``steps.scoring`` and ``steps.models``, and ``steps.training.trainer``.
"""
