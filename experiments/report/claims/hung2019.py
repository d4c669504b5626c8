"""Claims of Hung et al. 2019."""

from __future__ import annotations

from rlgates.experiments.report.claims.claim import Claim, RunGroup, Setting
from rlgates.experiments.report.claims.training import Solves

_SETTING = Setting(
    "15/90/15 steps, apples that pay 1 or 10, up to 16 M episodes, A2C, 10 seeds",
    "15/90/15 steps, no apples, 33,000 episodes, PPO; solved: a mean door reward of 9 of 10",
)


def _agent(variant: str) -> RunGroup:
    return RunGroup("value_transport", "Key-To-Door 15/90/15", "rma", variant)


_WITH = Solves(_agent("with transport"))
CLAIMS: tuple[Claim, ...] = (
    Claim(
        "released code, Key-To-Door",
        "With value transport, at a discount of 0.92, the RMA agent fetches the key and opens the "
        "door.",
        _WITH,
        _SETTING,
    ),
    Claim(
        "released code, Key-To-Door",
        "Without it, at the same discount, it does not.",
        Solves(_agent("without transport"), never=True),
        _SETTING,
        controls=(_WITH,),
    ),
    Claim(
        "released code, Key-To-Door",
        "Without it and without a discount it is unstable, and never consistently above 6 of 10.",
        Solves(_agent("without transport, gamma 1"), never=True),
        _SETTING,
        controls=(_WITH,),
    ),
)
