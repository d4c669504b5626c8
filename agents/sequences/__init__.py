"""Training on whole sequences: rollouts, buffers, the policy's methods, losses and updates."""

from rlgates.agents.sequences.buffers import Minibatch, SequenceBuffer
from rlgates.agents.sequences.policy import Latents, Observations, SequencePolicy, States

# Saved models hold classes by module and name: these were in this module before it was a package.
__all__ = [
    "Latents",
    "Minibatch",
    "Observations",
    "SequenceBuffer",
    "SequencePolicy",
    "States",
]
