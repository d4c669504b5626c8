"""Claims of Ohno et al. 2022."""

from __future__ import annotations

from rlgates.experiments.claims.claim import All, Claim, Runs
from rlgates.experiments.claims.exact import Cost
from rlgates.experiments.claims.gates import Moves
from rlgates.experiments.claims.learned import Better, Solves, Sooner, StaysAtBaseline
from rlgates.experiments.claims.saturating import First, Order, Slopes

COPY, ADDING = "copy, delay 100, cues one", "adding, steps 200"
_PAPER = "Ohno et al. 2022"
TIED = "lstm:tied=True"  # the gates of all LSTMs of the paper are
_FOUR = ("fast", "refine", "sigmoid", "softsign")
_SHORT = "100 blanks and 200 steps, 64 units; the paper has 500, 5,000 and 128"


def _tied(core: str, title: str = ADDING) -> Runs:
    return Runs("tied_gates", title, core)


def _digits(core: str) -> Runs:
    return Runs("tied_pixels", "digits", core)


def _words(core: str) -> Runs:
    return Runs("rare_words", "ptb_words, by_frequency True", core)


def _sooner(core: str, *than: str, title: str = ADDING) -> All:
    return All(tuple(Sooner(_tied(core, title), _tied(other, title)) for other in than))


CLAIMS: tuple[Claim, ...] = (
    Claim(
        f"{_PAPER}, figure 2, proposition 4.5",
        "What is lost in a step, 1 - f, falls as 1/t for a sigmoid and only as t^(-1/3) for "
        "softsign.",
        Slopes({"sigmoid": (-1.02, -0.98), "softsign": (-0.353, -0.313)}),
    ),
    Claim(
        f"{_PAPER}, figure 2, table 1",
        "A refine gate saturates with the sigmoid's order, a fast gate with a higher one.",
        Slopes({"refine": (-1.02, -0.98), "fast": (-1.2, -1.02)}),
    ),
    Claim(
        f"{_PAPER}, figure 2",
        "At any late time the fast gate is nearest to 1, then refine, sigmoid, softsign.",
        Order(1e4, _FOUR),
    ),
    Claim(
        f"{_PAPER}, figure 8",
        "The fast gate gets near 1 in the fewest updates with RMSprop and Adam, too.",
        First(("RMSprop", "Adam"), _FOUR, 1e-3),
    ),
    Claim(
        f"{_PAPER}, figure 3",
        "A fast gate learns Adding sooner than a refine gate, and that sooner than a sigmoid.",
        All((_sooner("f_lstm", "r_lstm"), _sooner("r_lstm", "lstm"))),
        note=_SHORT,
    ),
    Claim(
        f"{_PAPER}, figures 3 and 4",
        "With softsign gates neither Adding nor Copy is learned.",
        All((Solves(_tied("s_lstm"), never=True), StaysAtBaseline(_tied("s_lstm", COPY)))),
        note=_SHORT,
    ),
    Claim(
        f"{_PAPER}, figure 4",
        "On Copy the fast gate is sooner than refine, sigmoid and chrono gates, and JANET.",
        _sooner("f_lstm", "r_lstm", "lstm", "c_lstm", "janet", title=COPY),
        note=_SHORT,
    ),
    Claim(
        f"{_PAPER}, figure 3",
        "The NRU needs fewer updates on Adding than the fast gate.",
        Sooner(_tied("nru"), _tied("f_lstm")),
        note=_SHORT,
    ),
    Claim(
        f"{_PAPER}, figure 4",
        "The NRU does not learn Copy.",
        StaysAtBaseline(_tied("nru", COPY)),  # within our budget no core solves it
        note=_SHORT,
    ),
    Claim(
        f"{_PAPER}, figure 5",
        "While Adding is learned, timescales grow further with fast gates than with a sigmoid.",
        Moves(_tied("f_lstm"), _tied("lstm"), "change"),
        note=f"{_SHORT}; the mean of the gates in place of their biases",
    ),
    Claim(
        f"{_PAPER}, appendix D",
        "Iterating the fast gate learns sooner still, Adding as well as Copy.",
        All((_sooner("ff_lstm", "f_lstm"), _sooner("ff_lstm", "f_lstm", title=COPY))),
        note=_SHORT,
    ),
    Claim(
        f"{_PAPER}, table 2",
        "On pixels the fast gate is better than a sigmoid, and that than softsign.",
        All(
            (
                Better(_digits("f_lstm"), _digits("lstm"), "test"),
                Better(_digits("lstm"), _digits("s_lstm"), "test"),
            )
        ),
        note="small digits of 64 pixels in place of permuted MNIST",
    ),
    Claim(
        f"{_PAPER}, table 2",
        "On the pixels of colour images chrono gates, JANET and NRU are worse than a tied LSTM.",
        All(
            tuple(
                Better(_digits("lstm"), _digits(core), "test")
                for core in ("c_lstm", "janet", "nru")
            )
        ),
        note="small digits of 64 pixels in place of CIFAR",
    ),
    Claim(
        f"{_PAPER}, table 2",
        "The fast gate costs almost nothing over a sigmoid.",
        Cost("f_lstm", TIED, most=1.05),
    ),
    Claim(
        f"{_PAPER}, table 2",
        "A refine gate takes half as long again as a fast gate, or more.",
        Cost("r_lstm", "f_lstm", least=1.5),
        note="all gates have fused code here",
    ),
    Claim(
        f"{_PAPER}, table 2",
        "An NRU takes more than twice the time of a tied LSTM.",
        Cost("nru", TIED, least=2.0),
        note="both have fused code here",
    ),
    Claim(
        f"{_PAPER}, table 3",
        "On words a fast gate has the lowest perplexity, lower than a sigmoid and a refine gate.",
        All(tuple(Better(_words("f_lstm"), _words(core), "test") for core in ("lstm", "r_lstm"))),
        note="256 units, three epochs, over all words",
    ),
    Claim(
        f"{_PAPER}, table 4",
        "A uniform start helps a refine gate on pixels.",
        Better(_digits("ur_lstm"), _digits("r_lstm"), "test"),
        note="small digits of 64 pixels in place of CIFAR",
    ),
    Claim(
        f"{_PAPER}, table 4",
        "A uniform start does nothing for a fast gate on pixels.",
        Better(_digits("f_lstm"), _digits("uf_lstm"), "test", margin=-0.01),
        note="small digits of 64 pixels in place of CIFAR; at most 0.01 worse without it",
    ),
    Claim(
        f"{_PAPER}, table 4",
        "Iterating the fast gate is no better on pixels.",
        Better(_digits("f_lstm"), _digits("ff_lstm"), "test", margin=-0.01),
        note="small digits of 64 pixels in place of CIFAR; at most 0.01 worse without it",
    ),
    Claim(
        f"{_PAPER}, table 6",
        "On 16,000 steps of raw speech the fast gate is better than a sigmoid, which diverges.",
        Better(
            Runs("speech", "speech_commands, subset True", "f_lstm"),
            Runs("speech", "speech_commands, subset True", "lstm"),
            "test",
        ),
        note="500 clips, ten epochs",
    ),
)
