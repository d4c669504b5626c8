"""Claims of GATO, of Zakovskis et al. 2023 and of van der Westhuizen and Lasenby 2018."""

from __future__ import annotations

from rlgates.experiments.claims.claim import All, Claim, Runs
from rlgates.experiments.claims.exact import (
    Cost,
    Exact,
    gato_jacobian,
    gato_parameters,
    janet_parameters,
)
from rlgates.experiments.claims.learned import Better, Solves, Sooner

LENGTHS = (100, 200, 400, 750)
_SIZE = "64 units in place of 512"


def _adding(core: str, length: int, variant: str = "") -> Runs:
    return Runs("adding_lengths", f"adding, steps {length}", core, variant)


def _better(study: str, title: str, core: str, *than: str, variant: str = "") -> All:
    """A better figure on test than with each of the others."""
    ours = Runs(study, title, core, variant)
    return All(tuple(Better(ours, Runs(study, title, other, variant), "test") for other in than))


def _aba(core: str) -> Runs:
    return Runs("copy_aba", "copy_aba, delay 20, length 5", core)


def _nottingham(variant: str = "") -> Runs:
    return Runs("rru_ablation", "nottingham", "rru", variant)


def _janet(core: str, title: str, variant: str = "") -> Runs:
    return Runs("janet", title, core, variant)


_TASKS = ("copy, delay 100", "adding, steps 200")

GATO: tuple[Claim, ...] = (
    Claim(
        "GATO, section 4.2",
        "However long the sequence, the state s has the identity as its Jacobian.",
        Exact("by autograd", gato_jacobian),
    ),
    Claim(
        "GATO, appendix B",
        "It has a fraction of the parameters of LSTM and GRU: 43,264 to 1,273,350 in the four "
        "experiments.",
        Exact("parameters of the cores", gato_parameters),
    ),
    Claim(
        "GATO, figure 1",
        "GATO copies symbols without a marker, the GRU and the LSTM do not.",
        All(
            tuple(
                Better(_aba("gato"), _aba(other), "test", margin=0.3) for other in ("gru", "lstm")
            )
        ),
        note="5 symbols over 20 blanks; figures are probabilities of the right symbol",
    ),
    Claim(
        "GATO, figure 2",
        "The LSTM learns Adding at no length from 100 to 750 within 200,000 examples.",
        All(tuple(Solves(_adding("lstm", length), never=True) for length in LENGTHS)),
        note=f"{_SIZE}; forget bias 1",
    ),
    Claim(
        "GATO, figure 2",
        "GATO learns Adding at all four lengths on every seed.",
        All(tuple(Solves(_adding("gato", length)) for length in LENGTHS)),
        note=_SIZE,
    ),
    Claim(
        "GATO, figure 2",
        "At 750 steps GATO is sooner than the GRU.",
        Sooner(_adding("gato", 750), _adding("gru", 750)),
        note=_SIZE,
    ),
    Claim(
        "GATO, appendix A",
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
        "GATO, table 1",
        "On intensive care GATO is more accurate than GRU and LSTM, at both learning rates.",
        All(
            tuple(
                Better(
                    Runs("icu", "icu", "gato", f"rate {rate:g}"),
                    Runs("icu", "icu", other, f"rate {rate:g}"),
                    "test",
                )
                for rate in (4e-3, 1e-4)
                for other in ("gru", "lstm")
            )
        ),
        note="PhysioNet 2012 in place of MIMIC-III",
    ),
    Claim(
        "GATO, table 2",
        "On words GATO has a lower perplexity than the GRU, and that than the LSTM.",
        All(
            (
                _better("ptb", "ptb_words", "gato", "gru"),
                _better("ptb", "ptb_words", "gru", "lstm"),
            )
        ),
        note="256 units, three epochs",
    ),
)

ZAKOVSKIS: tuple[Claim, ...] = (
    Claim(
        "Zakovskis et al. 2023, table 1",
        "The RRU models JSB Chorales best of four cells.",
        _better("music", "jsb", "rru", "gru", "lstm", "mogrifier"),
        note="128 units, with which it has the most parameters; one rate for all cells",
    ),
    Claim(
        "Zakovskis et al. 2023, table 1",
        "The RRU models Nottingham best of four cells.",
        _better("music", "nottingham", "rru", "gru", "lstm", "mogrifier"),
        note="128 units, with which it has the most parameters; one rate for all cells",
    ),
    Claim(
        "Zakovskis et al. 2023, table 1",
        "The RRU reads pixels best of four cells.",
        All(
            tuple(
                Better(Runs("residual", "digits", "rru"), Runs("residual", "digits", core), "test")
                for core in ("gru", "lstm", "mogrifier")
            )
        ),
        note="small digits of 64 pixels in place of MNIST",
    ),
    Claim(
        "Zakovskis et al. 2023, figures 3 and 4",
        "The RRU gains from dropout of 0.7.",
        Better(
            Runs("dropout", "nottingham", "rru", "dropout 0.7"),
            Runs("dropout", "nottingham", "rru", "dropout 0"),
            "test",
        ),
    ),
    Claim(
        "Zakovskis et al. 2023, table 2",
        "A residual weight fixed at 1 does harm.",
        Better(_nottingham(), _nottingham("S = 1"), "test"),
    ),
    Claim(
        "Zakovskis et al. 2023, table 2",
        "Without normalization the result is as good.",
        Better(_nottingham("no normalization"), _nottingham(), "test", margin=-0.05),
        note="at most 0.05 worse",
    ),
    Claim(
        "Zakovskis et al. 2023, table 2",
        "More ReLUs, on the candidate and the output, do harm.",
        Better(_nottingham(), _nottingham("ReLU on c and o"), "test"),
    ),
    Claim(
        "Zakovskis et al. 2023, table 2",
        "One scalar for all units in place of Z does a little harm.",
        Better(_nottingham(), _nottingham("one scalar Z"), "test"),
    ),
    Claim(
        "Zakovskis et al. 2023, table 2",
        "Residual weights that all start at 0.95 do a little harm.",
        Better(_nottingham(), _nottingham("S from 0.95"), "test"),
    ),
)

JANET: tuple[Claim, ...] = (
    Claim(
        "Van der Westhuizen and Lasenby 2018, abstract",
        "JANET reads pixels better than the LSTM.",
        Better(_janet("janet", "digits"), _janet("lstm", "digits"), "test"),
        note="small digits of 64 pixels in place of MNIST",
    ),
    Claim(
        "Van der Westhuizen and Lasenby 2018, copy and add tasks",
        "JANET learns Copy and Adding sooner than the LSTM with forget bias 1.",
        All(tuple(Sooner(_janet("janet", t), _janet("lstm", t)) for t in _TASKS)),
    ),
    Claim(
        "Van der Westhuizen and Lasenby 2018, the cell",
        "The gates that were left out do no good: JANET is sooner than the LSTM with its start.",
        All(tuple(Sooner(_janet("janet", t), _janet("c_lstm", t)) for t in _TASKS)),
    ),
    Claim(
        "Van der Westhuizen and Lasenby 2018, the cell",
        "Letting in a little more than is forgotten (beta = 1) makes learning easier.",
        All(tuple(Sooner(_janet("janet", t), _janet("janet", t, "beta 0")) for t in _TASKS)),
    ),
    Claim(
        "Van der Westhuizen and Lasenby 2018, the cell",
        "JANET has half of the LSTM's parameters.",
        Exact("parameters of the cores", janet_parameters),
    ),
    Claim(
        "Ohno et al. 2022, table 2",
        "JANET takes about three quarters of a tied LSTM's time.",
        Cost("janet", "lstm:tied=True", most=0.85),
    ),
)
