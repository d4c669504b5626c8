"""Claims of Ohno et al. 2022."""

from __future__ import annotations

from rlgates.experiments.report.claims.claim import All, Claim, RunGroup
from rlgates.experiments.report.claims.exact import Cost
from rlgates.experiments.report.claims.saturation import Fastest, Order, Slopes
from rlgates.experiments.report.claims.training import (
    Moves,
    Solves,
    StaysAtBaseline,
    better_than,
    sooner_than,
)

COPY, ADDING = "copy, delay 100, cues one", "adding, steps 200"
TIED = "lstm:tied=True"  # the gates of all LSTMs of the paper are
_FOUR = ("fast", "refine", "sigmoid", "softsign")
_SHORT = "100 blanks and 200 steps, 64 units; the paper has 500, 5,000 and 128"


def _tied(core: str, title: str = ADDING) -> RunGroup:
    return RunGroup("tied_gates", title, core)


def _digits(core: str) -> RunGroup:
    return RunGroup("tied_pixels", "digits", core)


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "figure 2, proposition 4.5",
        "What is lost in a step, 1 - f, falls as 1/t for a sigmoid and only as t^(-1/3) for "
        "softsign.",
        Slopes({"sigmoid": (-1.02, -0.98), "softsign": (-0.353, -0.313)}),
    ),
    Claim(
        "figure 2, table 1",
        "A refine gate saturates with the sigmoid's order, a fast gate with a higher one.",
        Slopes({"refine": (-1.02, -0.98), "fast": (-1.2, -1.02)}),
    ),
    Claim(
        "figure 2",
        "At any late time the fast gate is nearest to 1, then refine, sigmoid, softsign.",
        Order(1e4, _FOUR),
    ),
    Claim(
        "figure 8",
        "The fast gate gets near 1 in the fewest updates with RMSprop and Adam, too.",
        Fastest(("RMSprop", "Adam"), _FOUR, 1e-3),
    ),
    Claim(
        "figure 3",
        "A fast gate learns Adding sooner than a refine gate, and that sooner than a sigmoid.",
        All((sooner_than(_tied("f_lstm"), "r_lstm"), sooner_than(_tied("r_lstm"), "lstm"))),
        note=_SHORT,
    ),
    Claim(
        "figures 3 and 4",
        "With softsign gates neither Adding nor Copy is learned.",
        All((Solves(_tied("s_lstm"), never=True), StaysAtBaseline(_tied("s_lstm", COPY)))),
        note=_SHORT,
    ),
    Claim(
        "figure 4",
        "On Copy the fast gate is sooner than refine, sigmoid and chrono gates, and JANET.",
        sooner_than(_tied("f_lstm", COPY), "r_lstm", "lstm", "c_lstm", "janet"),
        note=_SHORT,
    ),
    Claim(
        "figure 3",
        "The NRU needs fewer updates on Adding than the fast gate.",
        sooner_than(_tied("nru"), "f_lstm"),
        note=_SHORT,
    ),
    Claim(
        "figure 4",
        "The NRU does not learn Copy.",
        StaysAtBaseline(_tied("nru", COPY)),  # within our budget no core solves it
        note=_SHORT,
    ),
    Claim(
        "figure 5",
        "While Adding is learned, timescales grow further with fast gates than with a sigmoid.",
        Moves(_tied("f_lstm"), _tied("lstm"), "change"),
        note=f"{_SHORT}; the mean of the gates in place of their biases",
    ),
    Claim(
        "appendix D",
        "Iterating the fast gate learns sooner still, Adding as well as Copy.",
        All(tuple(sooner_than(_tied("ff_lstm", title), "f_lstm") for title in (ADDING, COPY))),
        note=_SHORT,
    ),
    Claim(
        "table 2",
        "On pixels the fast gate is better than a sigmoid, and that than softsign.",
        All((better_than(_digits("f_lstm"), "lstm"), better_than(_digits("lstm"), "s_lstm"))),
        note="small digits of 64 pixels in place of permuted MNIST",
    ),
    Claim(
        "table 2",
        "On the pixels of colour images chrono gates, JANET and NRU are worse than a tied LSTM.",
        better_than(_digits("lstm"), "c_lstm", "janet", "nru"),
        note="small digits of 64 pixels in place of CIFAR",
    ),
    Claim(
        "table 2",
        "The fast gate costs almost nothing over a sigmoid.",
        Cost("f_lstm", TIED, most=1.05),
    ),
    Claim(
        "table 2",
        "A refine gate takes half as long again as a fast gate, or more.",
        Cost("r_lstm", "f_lstm", least=1.5),
        note="all gates have fused code here",
    ),
    Claim(
        "table 2",
        "An NRU takes more than twice the time of a tied LSTM.",
        Cost("nru", TIED, least=2.0),
        note="both have fused code here",
    ),
    Claim(
        "table 3",
        "On words a fast gate has the lowest perplexity, lower than a sigmoid and a refine gate.",
        better_than(
            RunGroup("rare_words", "ptb_words, by_frequency True", "f_lstm"), "lstm", "r_lstm"
        ),
        note="256 units, three epochs, over all words",
    ),
    Claim(
        "table 4",
        "A uniform start helps a refine gate on pixels.",
        better_than(_digits("ur_lstm"), "r_lstm"),
        note="small digits of 64 pixels in place of CIFAR",
    ),
    Claim(
        "table 4",
        "A uniform start does nothing for a fast gate on pixels.",
        better_than(_digits("f_lstm"), "uf_lstm", margin=-0.01),
        note="small digits of 64 pixels in place of CIFAR; at most 0.01 worse without it",
    ),
    Claim(
        "table 4",
        "Iterating the fast gate is no better on pixels.",
        better_than(_digits("f_lstm"), "ff_lstm", margin=-0.01),
        note="small digits of 64 pixels in place of CIFAR; at most 0.01 worse without it",
    ),
    Claim(
        "table 6",
        "On 16,000 steps of raw speech the fast gate is better than a sigmoid, which diverges.",
        better_than(RunGroup("speech", "speech_commands, subset True", "f_lstm"), "lstm"),
        note="500 clips, ten epochs",
    ),
    Claim(
        "table 2",
        "JANET takes about three quarters of a tied LSTM's time.",
        Cost("janet", TIED, most=0.85),
    ),
)
