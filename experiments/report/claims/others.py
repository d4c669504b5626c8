"""Claims of GATO, of Zakovskis et al. 2023 and of van der Westhuizen and Lasenby 2018."""

from __future__ import annotations

from rlgates.experiments.report.claims.claim import All, Claim, RunGroup
from rlgates.experiments.report.claims.exact import (
    Exact,
    gato_jacobian,
    gato_parameters,
    janet_parameters,
)
from rlgates.experiments.report.claims.training import (
    Better,
    Solves,
    Sooner,
    better_than,
    sooner_than,
)

LENGTHS = (100, 200, 400, 750)
_SIZE = "64 units in place of 512"


def _adding(core: str, length: int, variant: str = "") -> RunGroup:
    return RunGroup("adding_lengths", f"adding, steps {length}", core, variant)


def _nottingham(variant: str = "") -> RunGroup:
    return RunGroup("rru_ablation", "nottingham", "rru", variant)


def _janet(core: str, title: str, variant: str = "") -> RunGroup:
    return RunGroup("janet", title, core, variant)


_TASKS = ("copy, delay 100", "adding, steps 200")

GATO: tuple[Claim, ...] = (
    Claim(
        "section 4.2",
        "However long the sequence, the state s has the identity as its Jacobian.",
        Exact("by autograd", gato_jacobian),
    ),
    Claim(
        "appendix B",
        "It has a fraction of the parameters of LSTM and GRU: 43,264 to 1,273,350 in the four "
        "experiments.",
        Exact("parameters of the cores", gato_parameters),
    ),
    Claim(
        "figure 1",
        "GATO copies symbols without a marker, the GRU and the LSTM do not.",
        better_than(
            RunGroup("copy_aba", "copy_aba, delay 20, length 5", "gato"), "gru", "lstm", margin=0.3
        ),
        note="5 symbols over 20 blanks; figures are probabilities of the right symbol",
    ),
    Claim(
        "figure 2",
        "The LSTM learns Adding at no length from 100 to 750 within 200,000 examples.",
        All(tuple(Solves(_adding("lstm", length), never=True) for length in LENGTHS)),
        note=f"{_SIZE}; forget bias 1",
    ),
    Claim(
        "figure 2",
        "GATO learns Adding at all four lengths on every seed.",
        All(tuple(Solves(_adding("gato", length)) for length in LENGTHS)),
        note=_SIZE,
    ),
    Claim(
        "figure 2",
        "At 750 steps GATO is sooner than the GRU.",
        sooner_than(_adding("gato", 750), "gru"),
        note=_SIZE,
    ),
    Claim(
        "appendix A",
        "Without the sum that s carries Adding is not learned at all.",
        All(
            tuple(
                Solves(_adding("gato", 200, variant), never=True)
                for variant in ("s' = 0", "s' = increment")
            )
        ),
        note=f"200 steps in place of 750, {_SIZE}",
    ),
    Claim(
        "table 1",
        "On intensive care GATO is more accurate than GRU and LSTM, at both learning rates.",
        All(
            tuple(
                better_than(RunGroup("icu", "icu", "gato", f"rate {rate}"), other)
                for rate in ("0.004", "0.0001")
                for other in ("gru", "lstm")
            )
        ),
        note="PhysioNet 2012 in place of MIMIC-III",
    ),
    Claim(
        "table 2",
        "On words GATO has a lower perplexity than the GRU, and that than the LSTM.",
        All(
            tuple(
                better_than(RunGroup("ptb", "ptb_words", core), other)
                for core, other in (("gato", "gru"), ("gru", "lstm"))
            )
        ),
        note="256 units, three epochs",
    ),
)

ZAKOVSKIS: tuple[Claim, ...] = (
    Claim(
        "table 1",
        "The RRU models JSB Chorales best of four cells.",
        better_than(RunGroup("music", "jsb", "rru"), "gru", "lstm", "mogrifier"),
        note="128 units, with which it has the most parameters; one rate for all cells",
    ),
    Claim(
        "table 1",
        "The RRU models Nottingham best of four cells.",
        better_than(RunGroup("music", "nottingham", "rru"), "gru", "lstm", "mogrifier"),
        note="128 units, with which it has the most parameters; one rate for all cells",
    ),
    Claim(
        "table 1",
        "The RRU reads pixels best of four cells.",
        better_than(RunGroup("residual", "digits", "rru"), "gru", "lstm", "mogrifier"),
        note="small digits of 64 pixels in place of MNIST",
    ),
    Claim(
        "figures 3 and 4",
        "The RRU gains from dropout of 0.7.",
        Better(
            RunGroup("dropout", "nottingham", "rru", "dropout 0.7"),
            RunGroup("dropout", "nottingham", "rru", "dropout 0"),
            "test",
        ),
    ),
    Claim(
        "table 2",
        "A residual weight fixed at 1 does harm.",
        Better(_nottingham(), _nottingham("S = 1"), "test"),
    ),
    Claim(
        "table 2",
        "Without normalization the result is as good.",
        Better(_nottingham("no normalization"), _nottingham(), "test", margin=-0.05),
        note="at most 0.05 worse",
    ),
    Claim(
        "table 2",
        "More ReLUs, on the candidate and the output, do harm.",
        Better(_nottingham(), _nottingham("ReLU on c and o"), "test"),
    ),
    Claim(
        "table 2",
        "One scalar for all units in place of Z does a little harm.",
        Better(_nottingham(), _nottingham("one scalar Z"), "test"),
    ),
    Claim(
        "table 2",
        "Residual weights that all start at 0.95 do a little harm.",
        Better(_nottingham(), _nottingham("S from 0.95"), "test"),
    ),
)

JANET: tuple[Claim, ...] = (
    Claim(
        "abstract",
        "JANET reads pixels better than the LSTM.",
        better_than(_janet("janet", "digits"), "lstm"),
        note="small digits of 64 pixels in place of MNIST",
    ),
    Claim(
        "copy and add tasks",
        "JANET learns Copy and Adding sooner than the LSTM with forget bias 1.",
        All(tuple(sooner_than(_janet("janet", t), "lstm") for t in _TASKS)),
    ),
    Claim(
        "the cell",
        "The gates that were left out do no good: JANET is sooner than the LSTM with its start.",
        All(tuple(sooner_than(_janet("janet", t), "c_lstm") for t in _TASKS)),
    ),
    Claim(
        "the cell",
        "Letting in a little more than is forgotten (beta = 1) makes learning easier.",
        All(tuple(Sooner(_janet("janet", t), _janet("janet", t, "beta 0")) for t in _TASKS)),
    ),
    Claim(
        "the cell",
        "JANET has half of the LSTM's parameters.",
        Exact("parameters of the cores", janet_parameters),
    ),
)
