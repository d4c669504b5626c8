"""The Reconstructive Memory Agent (Hung et al. 2019)."""

from rlgates.agents.rma.policy import RMAPolicy

# Saved models hold the policy class by module and name: it was here before this was a package.
__all__ = ["RMAPolicy"]
