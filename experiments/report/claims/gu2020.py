"""Claims of Gu et al. 2020."""

from __future__ import annotations

from rlgates.experiments.report.claims.claim import All, Claim, RunGroup, Setting, Test
from rlgates.experiments.report.claims.exact import (
    Exact,
    initial_master_gates,
    initial_timescales,
    refine_bounds,
)
from rlgates.experiments.report.claims.training import (
    IMAGES,
    Above,
    Better,
    Learns,
    Moves,
    Solves,
    Sooner,
    better_than,
)

CHANGED = ("c", "o", "u", "r", "om", "or", "um", "ur")
COPY, ADDING = "copy, delay 500", "adding, steps 750"
ACTIVE = "ActiveMatch 15/30/15"
PROGRAM_CORES = ("lstm", "c_lstm", "om_lstm", "u_lstm", "ur_lstm")
CHANCE = 0.385  # on Active Match: 0.05 above what an agent without memory reaches
_COPY = Setting(
    "500 blanks, 256 units, Adam at 1e-3; the number of updates is not given",
    "500 blanks, 256 units, Adam at 2e-3, 24,000 updates of 4 sequences at most",
)
_ADDING = Setting(
    "2,000 steps, 256 units, Adam at 1e-3; the number of updates is not given",
    "750 steps, 64 units, Adam at 4e-3, 20,000 updates of 16 sequences at most",
)
_FORGETTING = Setting(
    "500 steps, 64 units, Adam at 1e-4, 10,000 updates",
    "500 steps, 64 units, Adam at 1e-3 (at 1e-4 neither learned anything on 3 seeds), 10,000 "
    "updates of 16 sequences",
)
_IMAGES = Setting(
    "pMNIST and sCIFAR (3 x 1,024), 512 units, 150 epochs, of sCIFAR 100, the best of four rates "
    "(table 2, accuracies on held-out images); sMNIST, too, and more units (table 3, on test)",
    "average-pooled sCIFAR (3 x 256), 64 units, one rate, until none improves",
)
_PIXELS = "episodes of 450 to 600 steps, pixels, A3C"
_MATCH = f"{_PIXELS}, discount 0.96"
_TUNED = "settings tuned with UR gates (inputs scaled by 8), 6 M steps at most in 128 environments"
_ACTIVE = Setting(_MATCH, f"episodes of 60 steps in a grid, 64 units, PPO, discount 0.98, {_TUNED}")
_PASSIVE = Setting(
    _MATCH,
    f"episodes of 120 steps in a grid, 64 units, PPO, discount 0.95, {_TUNED}; with more steps, in "
    "512 environments on a GPU, both solve it on five seeds, UR gates no sooner (P = 0.48)",
)
_APPLES = Setting(
    f"{_PIXELS}, discount 0.998; RMA",
    f"{_ACTIVE.ours}; RMA's core alone",
)
_PROGRAMS = Setting(
    "1,024 or 2,048 units, 500,000 updates of 128 programs",
    "64 units, 2,000 updates of 32 programs",
)
_WORDS = Setting(
    "WikiText-103, 3,072 units",
    "Penn Treebank, 256 units, until the perplexity improves by less than 1",
)


def _copy(core: str, title: str = COPY) -> RunGroup:
    return RunGroup("copy_adding", title, core)


def _solved(core: str, title: str = COPY) -> Solves:
    return Solves(_copy(core, title), eventually=True)


def _at_baseline(core: str) -> Learns:
    return Learns(_copy(core), never=True)


def _colours(core: str, variant: str = "") -> RunGroup:
    return RunGroup("pixels", "scifar, pool 2", core, variant)


def _active(core: str) -> RunGroup:
    return RunGroup("match", ACTIVE, core)


def _large_apples(core: str) -> RunGroup:
    return RunGroup("match_large_apples", ACTIVE, core)


def _ur_sooner(study: str, title: str, core: str = "lstm") -> Sooner:
    """UR gates are sooner than plain ones; success saturates where runs are stopped."""
    return Sooner(RunGroup(study, title, f"ur_{core}"), RunGroup(study, title, core))


def _forgetting(core: str) -> RunGroup:
    return RunGroup("forgetting", "forgetting, steps 500", core)


def _learns_saturated(core: str, never: bool = False) -> Learns:
    return Learns(_forgetting(core), 0.05, never=never)


def _programs(task: str, core: str) -> RunGroup:
    return RunGroup("programs", f"lte_{task}", core)


def _best_on_programs(task: str, core: str) -> Test:
    """A core is better than each of the others in Learning to Execute."""
    return better_than(_programs(task, core), *(name for name in PROGRAM_CORES if name != core))


def _words(core: str) -> RunGroup:
    return RunGroup("rare_words", "ptb_words, by_frequency True", core)


def _sooner(core: str, than: str, title: str) -> Sooner:
    return Sooner(_copy(core, title), _copy(than, title))


# With fewer than half of the symbols right a core has hardly begun to learn.
_BEGUN = (Above(_programs("addition", "lstm"), 0.5, "test"),)
_LEARNED = (Learns(_copy("c_lstm")), Learns(_copy("or_lstm")))  # as published
_UR_LEARNED = (_solved("ur_lstm"),)  # before the gates of the figure are seen


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "section 2.3, figure 2, proposition 2",
        "A refine gate can turn 0.9 into 0.99, and a timescale D into anything from about D/2 to "
        "D squared.",
        Exact("bounds of the effective gate", refine_bounds),
    ),
    Claim(
        "proposition 1, table 4",
        "A uniform start leaves a share of 1/x of the timescales above x; chrono gates spread them "
        "evenly.",
        Exact("timescales of 200,000 units at the start", initial_timescales),
    ),
    Claim(
        "appendix B.4",
        "Master gates start with f + i = 5/6 on average (in the proof of proposition 3, which says "
        "so of the forget gate), and tied and rescaled they are refine gates.",
        Exact("master gates at zero, and tied at 10,000 points", initial_master_gates),
    ),
    Claim(
        "figure 3",
        "With UR gates the LSTM copies over 500 steps; the plain LSTM learns nothing.",
        All((_solved("ur_lstm"), _at_baseline("lstm"))),
        _COPY,
        controls=_LEARNED,
    ),
    Claim(
        "figure 3",
        "Chrono gates and ordered refine gates copy over 500 steps, too.",
        All((_solved("c_lstm"), _solved("or_lstm"))),
        _COPY,
    ),
    Claim(
        "figure 3",
        "Ordered gates copy over 500 steps; with master gates, ordered or uniform, nothing is "
        "learned.",
        All(
            (
                _solved("o_lstm"),
                _at_baseline("om_lstm"),
                _at_baseline("um_lstm"),
            )
        ),
        _COPY,
        controls=_LEARNED,
    ),
    Claim(
        "figure 3",
        "Refining alone is not enough to copy over 500 steps: R learns nothing.",
        _at_baseline("r_lstm"),
        _COPY,
        controls=_LEARNED,
    ),
    Claim(
        "figure 3",
        "The uniform start alone makes progress on Copy, but is slower than with a refine gate.",
        All((Learns(_copy("u_lstm")), _sooner("ur_lstm", "u_lstm", COPY))),
        _COPY,
    ),
    Claim(
        "figure 3",
        "Of the gates that solve Copy, ordered refine gates do so sooner than ordered gates.",
        _sooner("or_lstm", "o_lstm", COPY),
        _COPY,
    ),
    Claim(
        "figure 3",
        "Every modified gate solves Adding.",
        All(tuple(_solved(f"{gate}_lstm", ADDING) for gate in CHANGED)),
        _ADDING,
    ),
    Claim(
        "figure 3",
        "The plain LSTM does not solve Adding.",
        Solves(_copy("lstm", ADDING), never=True),
        _ADDING,
        controls=tuple(_solved(f"{gate}_lstm", ADDING) for gate in CHANGED),
    ),
    Claim(
        "figure 3",
        "Refining speeds up Adding: UR is sooner than U, and OR sooner than O.",
        All((_sooner("ur_lstm", "u_lstm", ADDING), _sooner("or_lstm", "o_lstm", ADDING))),
        _ADDING,
    ),
    Claim(
        "figure 4",
        "Training on Copy moves UR's gates far, and U's hardly at all.",
        Moves(_copy("ur_lstm"), _copy("u_lstm"), "moved"),
        _COPY,
        controls=_UR_LEARNED,
    ),
    Claim(
        "figure 4",
        "Chrono gates barely move in training, less than UR's.",
        Moves(_copy("ur_lstm"), _copy("c_lstm"), "moved"),
        _COPY,
        controls=_UR_LEARNED,
    ),
    Claim(
        "appendix E.1",
        "Starting from saturated gates, a refine gate learns Adding over 500 steps; the plain LSTM "
        "is stuck after 10,000 updates.",
        All((_learns_saturated("r_lstm"), _learns_saturated("lstm", never=True))),
        _FORGETTING,
        controls=(_learns_saturated("r_lstm"),),
    ),
    Claim(
        "figure 9",
        "After that training the smallest timescale is over 10 times smaller with a refine gate "
        "than in the plain LSTM (the caption says UR, the text R).",
        Moves(_forgetting("lstm"), _forgetting("r_lstm"), "shortest", factor=10),
        _FORGETTING,
    ),
    Claim(
        "tables 2 and 3",
        "UR gates read images pixel by pixel better than the plain LSTM.",
        Better(_colours("ur_lstm"), _colours("lstm", "untied"), "test", examples=IMAGES),
        _IMAGES,
    ),
    Claim(
        "figure 7",
        "UR gates learn Passive Match sooner than the plain LSTM.",
        _ur_sooner("passive_match_ten", "PassiveMatch 15/90/15"),
        _PASSIVE,
    ),
    Claim(
        "figure 7",
        "On Active Match UR gates learn sooner than the plain LSTM.",
        _ur_sooner("match", ACTIVE),
        _ACTIVE,
    ),
    Claim(
        "figure 7",
        "On Active Match only UR gates get above chance, not chrono, ordered master or plain ones.",
        All(
            (
                Above(_active("ur_lstm"), CHANCE),
                *(Above(_active(f"{gate}lstm"), CHANCE, never=True) for gate in ("", "c_", "om_")),
            )
        ),
        _ACTIVE,
        controls=(Above(_active("ur_lstm"), CHANCE),),
    ),
    Claim(
        "figure 8",
        "With small apples on the way, UR gates learn Active Match sooner, in an LSTM and in RMA.",
        All(tuple(_ur_sooner("match_small_apples", ACTIVE, core) for core in ("lstm", "rma"))),
        _APPLES,
    ),
    Claim(
        "figure 10",
        "With large apples UR gates learn Active Match sooner, in an LSTM and in a DNC.",
        All(tuple(_ur_sooner("match_large_apples", ACTIVE, core) for core in ("lstm", "dnc"))),
        Setting(_MATCH, _ACTIVE.ours),
    ),
    Claim(
        "appendix E.2, figure 10",
        "With large apples the DNC gets above chance with UR gates alone, not with plain ones.",
        All(
            (
                Above(_large_apples("ur_dnc"), CHANCE),
                Above(_large_apples("dnc"), CHANCE, never=True),
            )
        ),
        Setting(_MATCH, _ACTIVE.ours),
        controls=(Above(_large_apples("ur_dnc"), CHANCE),),
    ),
    Claim(
        "figure 11",
        "On the control and program tasks of Learning to Execute UR is the best of all gates.",
        All(tuple(_best_on_programs(task, "ur_lstm") for task in ("control", "program"))),
        _PROGRAMS,
        controls=_BEGUN,
    ),
    Claim(
        "figure 11",
        "On the addition task of Learning to Execute, uniform gates without refinement are best.",
        _best_on_programs("addition", "u_lstm"),
        _PROGRAMS,
        controls=_BEGUN,
    ),
    Claim(
        "figure 11",
        "Chrono gates are very poor in Learning to Execute (worse than plain ones on addition, as "
        "the figure shows).",
        better_than(_programs("addition", "lstm"), "c_lstm"),
        _PROGRAMS,
        controls=_BEGUN,
    ),
    Claim(
        "figure 6",
        "As word-level language models, LSTMs with UR gates have a lower perplexity than plain "
        "ones, and those with chrono gates a higher one.",
        All((better_than(_words("ur_lstm"), "lstm"), better_than(_words("lstm"), "c_lstm"))),
        _WORDS,
    ),
)
