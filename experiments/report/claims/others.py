"""Claims of GATO, of Zakovskis et al. 2023 and of van der Westhuizen and Lasenby 2018."""

from __future__ import annotations

from rlgates.experiments.report.claims.claim import All, Claim, RunGroup, Setting
from rlgates.experiments.report.claims.exact import (
    Exact,
    gato_jacobian,
    gato_parameters,
    janet_parameters,
)
from rlgates.experiments.report.claims.training import (
    IMAGES,
    Above,
    Better,
    Solves,
    better_than,
    sooner_than,
)
from rlgates.experiments.studies.gato2020 import LENGTHS, TORCH_BIAS

PATIENTS, DIGITS = 788, 360  # of the test sets
_GATO_ADDING = Setting(
    "200,000 examples, 512 units, a decoder of 256, Adam at 4e-3, no clipping; biases of "
    "torch.nn, about 0",
    "200,000 examples, 64 units, a decoder of 64, Adam at 4e-3, no clipping; forget bias 0 of GRU "
    "and LSTM",
)
_ABLATED = Setting(f"750 steps, {_GATO_ADDING.paper}", f"200 steps, {_GATO_ADDING.ours}")
_BIAS_1 = "forget bias 1 of GRU and LSTM"
_RATES = "one rate of 5e-3"
_TUNED = "parameters by cell, from 100 tuning runs of each; rates"
_MUSIC = Setting(
    f"1.3 to 6.9 M {_TUNED} RRU and GRU 5e-3, LSTM 1e-2, Mogrifier 2.6e-3",
    f"as many parameters as the RRU of 128 units (177,136), dropout 0.5 in each, {_RATES}",
)
_NOTTINGHAM = Setting(
    "RAdam, each version tuned; the whole cell of table 1: 2.6 M parameters, dropout 0.77",
    f"177,136 parameters, Adam, {_RATES}, dropout 0.5, 100 epochs",
)
_DROPOUT = Setting(
    "5 M parameters, q = 2, RAdam at 1e-3",
    f"177,136 parameters, Adam, {_RATES}, 100 epochs, after which four runs of ten with 0.7 still "
    "improve",
)
_JANET_PIXELS = Setting(
    "MNIST and pMNIST, 784 steps: 99 and 92.5 % against 98.5 and 91",
    "average-pooled MNIST, 196 steps, 64 units, one layer, the better of two rates, until none "
    "improves",
)


def _adding(core: str, length: int, variant: str = "") -> RunGroup:
    return RunGroup("adding_lengths", f"adding, steps {length}", core, variant)


def _adding_torch(core: str, length: int) -> RunGroup:
    """Fresh seeds, and the forget bias of the paper for GRU and LSTM."""
    return RunGroup("adding_torch", f"adding, steps {length}", core, TORCH_BIAS)


def _copies(core: str, never: bool = False) -> Above:
    run = RunGroup("copy_aba", "copy_aba, delay 100, length 20", core)
    return Above(run, 0.3, "test", never=never)


def _nottingham(variant: str = "") -> RunGroup:
    return RunGroup("rru_ablation", "nottingham", "rru", variant)


def _start(variant: str = "") -> RunGroup:
    return RunGroup("rru_start", "nottingham", "rru", variant)


def _best_rru(study: str, title: str, examples: int | None = None) -> All:
    """The RRU is better than each other cell of as many parameters."""
    others = (
        RunGroup(study, title, core, "equal parameters") for core in ("gru", "lstm", "mogrifier")
    )
    rru = RunGroup(study, title, "rru")
    return All(tuple(Better(rru, other, "test", examples=examples) for other in others))


def _pooled(core: str, variant: str = "") -> RunGroup:
    return RunGroup("pixels", "smnist, pool 2", core, variant)


GATO: tuple[Claim, ...] = (
    Claim(
        "section 4.2",
        "However long the sequence, the state s has the identity as its Jacobian.",
        Exact("by autograd", gato_jacobian),
    ),
    Claim(
        "section 5, tables 1 and 2",
        "GATO has a fraction of the parameters of LSTM and GRU: 20,736 to 1,273,350 in the four "
        "experiments.",
        Exact("parameters of the cores", gato_parameters),
    ),
    Claim(
        "figure 1",
        "GATO copies symbols without a marker; the GRU and the LSTM do not.",
        All((_copies("gato"), _copies("gru", never=True), _copies("lstm", never=True))),
        Setting(
            "20 symbols over 100 blanks, 1,024 units, 1,000,000 examples; probabilities of at "
            "least 0.5, and near 0.1",
            "20 symbols over 100 blanks, 64 units, 1,000,000 examples; the line between "
            "these probabilities is 0.3",
        ),
        controls=(_copies("gato"),),
    ),
    Claim(
        "figure 2",
        "The LSTM learns Adding at no length from 100 to 750 within 200,000 examples.",
        All(
            (
                Solves(_adding_torch("lstm", LENGTHS[0]), never=True),
                *(Solves(_adding("lstm", n, TORCH_BIAS), never=True) for n in LENGTHS[1:]),
            )
        ),
        _GATO_ADDING,
        controls=(Solves(_adding("gato", LENGTHS[-1])),),
    ),
    Claim(
        "figure 2",
        "GATO learns Adding at all four lengths.",
        All(tuple(Solves(_adding("gato", length)) for length in LENGTHS)),
        _GATO_ADDING,
    ),
    Claim(
        "section 5.3",
        "At 750 steps random initializations of the GRU fail to learn Adding (some or all: the "
        "text is ambiguous).",
        Solves(_adding_torch("gru", 750), never=True),
        _GATO_ADDING,
        controls=(Solves(_adding_torch("gato", 750)),),
    ),
    Claim(
        "figure 2",
        "At 750 steps GATO learns Adding sooner than the GRU.",
        sooner_than(_adding_torch("gato", 750), "gru"),
        _GATO_ADDING,
    ),
    Claim(
        "appendix A",
        "Without the sum that s carries, Adding is not learned at all.",
        All(
            tuple(
                Solves(_adding("gato", 200, variant), never=True)
                for variant in ("s' = 0", "s' = increment")
            )
        ),
        _ABLATED,
        controls=(Solves(_adding("gato", 200)),),
    ),
    Claim(
        "table 1",
        "On intensive care GATO is more accurate than GRU and LSTM, at both learning rates.",
        All(
            tuple(
                better_than(
                    RunGroup("icu", "icu", "gato", f"rate {rate}"), other, examples=PATIENTS
                )
                for rate in ("0.004", "0.0001")
                for other in ("gru", "lstm")
            )
        ),
        Setting(
            "MIMIC-III, 53,211 patients, 512 units, a decoder of 1,024, no clipping",
            "PhysioNet 2012, 788 patients to test, 128 units, no hidden layer in the decoder, "
            f"gradients clipped at 1, {_BIAS_1}",
        ),
    ),
    Claim(
        "table 2",
        "As a word-level language model GATO has a lower perplexity than the GRU, and the GRU a "
        "lower one than the LSTM.",
        All(
            tuple(
                better_than(RunGroup("rare_words", "ptb_words, by_frequency True", core), other)
                for core, other in (("gato", "gru"), ("gru", "lstm"))
            )
        ),
        Setting(
            "Penn Treebank, 1,300 units, Adam at 1e-4 with weight decay, no dropout, no clipping, "
            "embeddings of 650",
            "Penn Treebank, 256 units, Adam at 3e-3 without weight decay, dropout of 0.3, "
            f"gradients clipped at 1, tied embeddings of 128, {_BIAS_1}; until it improves by "
            "less than 1",
        ),
    ),
)

ZAKOVSKIS: tuple[Claim, ...] = (
    Claim(
        "table 1",
        "Of four cells the RRU models JSB Chorales best.",
        _best_rru("music", "jsb"),
        _MUSIC,
    ),
    Claim(
        "table 1",
        "Of four cells the RRU models Nottingham best.",
        _best_rru("residual", "nottingham"),
        Setting(
            f"1.3 to 6.0 M {_TUNED} RRU 2.9e-4, GRU 4.5e-3, LSTM 8.8e-3, Mogrifier 1.7e-3",
            f"{_MUSIC.ours}; until none improves",
        ),
    ),
    Claim(
        "table 1",
        "Of four cells the RRU reads pixels in their natural order best.",
        _best_rru("residual", "digits", examples=DIGITS),
        Setting(
            "MNIST by pixels, 70,000 parameters",
            "1,437 digits of 8 x 8; a test set of 360; 83,524 parameters; until none improves",
        ),
    ),
    Claim(
        "figure 3",
        "The RRU gains from dropout of 0.7.",
        Better(
            RunGroup("dropout", "nottingham", "rru", "dropout 0.7"),
            RunGroup("dropout", "nottingham", "rru", "dropout 0"),
            "test",
        ),
        _DROPOUT,
    ),
    Claim(
        "table 2",
        "A residual weight fixed at 1 does harm.",
        Better(_nottingham(), _nottingham("S = 1"), "test"),
        _NOTTINGHAM,
    ),
    Claim(
        "table 2",
        "Without normalization the result is as good on Nottingham: at most 0.05 worse.",
        Better(_nottingham("no normalization"), _nottingham(), "test", margin=-0.05),
        _NOTTINGHAM,
    ),
    Claim(
        "table 2",
        "More ReLUs, on the candidate and the output, do harm.",
        Better(_nottingham(), _nottingham("ReLU on c and o"), "test"),
        _NOTTINGHAM,
    ),
    Claim(
        "table 2",
        "One scalar for all units instead of Z does a little harm (0.05 there).",
        Better(_nottingham(), _nottingham("one scalar Z"), "test"),
        _NOTTINGHAM,
    ),
    Claim(
        "table 2",
        "Residual weights that all start at 0.95 do a little harm.",
        Better(_start(), _start("S from 0.95"), "test"),
        _NOTTINGHAM,
    ),
)

JANET: tuple[Claim, ...] = (
    Claim(
        "abstract (arXiv 1804.04849)",
        "JANET reads pixels better than the LSTM.",
        Better(_pooled("janet"), _pooled("lstm", "untied"), "test", examples=IMAGES),
        _JANET_PIXELS,
    ),
    Claim(
        "the cell",
        "JANET has half of the LSTM's parameters.",
        Exact("parameters of the cores", janet_parameters),
    ),
)
