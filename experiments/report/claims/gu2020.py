"""Claims of Gu et al. 2020."""

from __future__ import annotations

from rlgates.experiments.report.claims.claim import All, Claim, RunGroup
from rlgates.experiments.report.claims.exact import (
    Exact,
    initial_master_gates,
    initial_timescales,
    refine_bounds,
)
from rlgates.experiments.report.claims.training import (
    Better,
    Moves,
    Solves,
    Sooner,
    StaysAtBaseline,
    better_than,
)

COPY, ADDING = ("copy, delay 100", "copy, delay 500"), ("adding, steps 200", "adding, steps 750")
_SMALL = "8,000 updates of 4 sequences at most; the paper does not say how many"
_FEW_PROGRAMS = (
    "64 units and 2,000 updates of 32 programs; the paper has 1,024 or 2,048, and 500,000 of 128"
)
_FEW = "750 steps in place of 2,000; 5,000 updates of 16 sequences at most"


def _copy(core: str, title: str = COPY[1]) -> RunGroup:
    return RunGroup("copy_adding", title, core)


def _solved(core: str, title: str = COPY[1]) -> Solves:
    return Solves(_copy(core, title), eventually=True)


def _match(core: str, active: bool = False) -> RunGroup:
    return RunGroup("match", f"{'Active' if active else 'Passive'}Match 15/30/15", core)


def _better_with_apples(study: str, *cores: str) -> All:
    """UR gates are better in each of the cores."""
    title = "ActiveMatch 15/30/15"
    pairs = ((RunGroup(study, title, f"ur_{core}"), RunGroup(study, title, core)) for core in cores)
    return All(tuple(Better(*pair) for pair in pairs))


def _forgetting(core: str, variant: str = "") -> RunGroup:
    return RunGroup("forgetting", "forgetting, steps 500", core, variant)


def _programs(task: str, core: str) -> RunGroup:
    return RunGroup("programs", f"lte_{task}", core)


def _words(core: str) -> RunGroup:
    return RunGroup("words", "ptb_words", core)


def _sooner(core: str, than: str, titles: tuple[str, ...]) -> All:
    return All(tuple(Sooner(_copy(core, title), _copy(than, title)) for title in titles))


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "section 2.3, figure 2",
        "A refine gate can turn 0.9 into 0.99, and a timescale D into anything from about D/2 to "
        "D squared.",
        Exact("bounds of the effective gate", refine_bounds),
    ),
    Claim(
        "proposition 1",
        "A uniform start spreads timescales as 1/x; chrono gates spread them evenly.",
        Exact("timescales of 200,000 units at the start", initial_timescales),
    ),
    Claim(
        "appendix B.4",
        "Master gates start with f + i = 5/6 on average, and tied and rescaled they are refine "
        "gates.",
        Exact("master gates at zero, and tied at 10,000 points", initial_master_gates),
    ),
    Claim(
        "figure 3",
        "With UR gates the LSTM copies over 500 steps, the plain LSTM learns nothing.",
        All((_solved("ur_lstm"), StaysAtBaseline(_copy("lstm")))),
        note=_SMALL,
    ),
    Claim(
        "figure 3",
        "Chrono gates and ordered refine gates copy over 500 steps, too.",
        All((_solved("c_lstm"), _solved("or_lstm"))),
        note=_SMALL,
    ),
    Claim(
        "figure 3",
        "Ordered gates copy over 500 steps; with master gates, ordered or uniform, nothing is "
        "learned.",
        All(
            (
                _solved("o_lstm"),
                StaysAtBaseline(_copy("om_lstm")),
                StaysAtBaseline(_copy("um_lstm")),
            )
        ),
        note=_SMALL,
    ),
    Claim(
        "figure 3",
        "Refining alone is not enough to copy over 500 steps: R learns nothing.",
        StaysAtBaseline(_copy("r_lstm")),
        note=_SMALL,
    ),
    Claim(
        "figure 3",
        "The uniform start alone makes progress on Copy, but is slower than with a refine gate.",
        _sooner("ur_lstm", "u_lstm", COPY),
        note=_SMALL,
    ),
    Claim(
        "figure 3",
        "Of the gates that solve Copy, ordered refine ones are sooner than ordered ones.",
        _sooner("or_lstm", "o_lstm", COPY),
        note=_SMALL,
    ),
    Claim(
        "figure 3",
        "Every changed gate solves Adding.",
        All(
            tuple(
                _solved(f"{gate}_lstm", ADDING[1])
                for gate in ("c", "o", "u", "r", "om", "or", "um", "ur")
            )
        ),
        note=_FEW,
    ),
    Claim(
        "figure 3",
        "The plain LSTM does not solve Adding.",
        Solves(_copy("lstm", ADDING[1]), never=True),
        note=_FEW,
    ),
    Claim(
        "figure 3",
        "On Adding each gate is sooner with refining than without: UR and U, OR and O.",
        All((_sooner("ur_lstm", "u_lstm", ADDING), _sooner("or_lstm", "o_lstm", ADDING))),
    ),
    Claim(
        "figure 4",
        "Training on Copy moves UR's gates far, and U's hardly at all.",
        Moves(_copy("ur_lstm"), _copy("u_lstm"), "moved"),
    ),
    Claim(
        "figure 4",
        "Chrono gates barely move in training, less than UR's.",
        Moves(_copy("ur_lstm"), _copy("c_lstm"), "moved"),
    ),
    Claim(
        "appendix E.1",
        "From saturated gates a refine gate learns Adding over 500 steps, the plain LSTM is stuck "
        "after 10,000 updates.",
        All((Solves(_forgetting("r_lstm")), Solves(_forgetting("lstm"), never=True))),
        note="at ten times the published rate; at that one neither learned a thing on 3 seeds",
    ),
    Claim(
        "figure 9",
        "The smallest timescale after that is over 10 times smaller with UR gates.",
        Moves(_forgetting("lstm"), _forgetting("r_lstm", "to the end"), "shortest", factor=10),
        note="R, which has UR's gates: a start in saturation is not uniform",
    ),
    Claim(
        "table 2",
        "UR gates read images pixel by pixel better than the plain LSTM.",
        better_than(RunGroup("pixels", "smnist", "ur_lstm"), "lstm"),
        note="two epochs of sMNIST, 64 units",
    ),
    Claim(
        "figure 7",
        "UR gates learn Passive Match sooner than the plain LSTM.",
        Sooner(_match("ur_lstm"), _match("lstm")),
        note="30 steps between cue and choice, PPO; the paper has 450 and A3C",
    ),
    Claim(
        "figure 7",
        "On Active Match UR gates are better than the plain LSTM.",
        Better(_match("ur_lstm", active=True), _match("lstm", active=True)),
        note="as above",
    ),
    Claim(
        "figure 7",
        "On Active Match UR gates alone get above chance: not the chrono, ordered master or plain "
        "ones.",
        All(
            (
                Better(_match("ur_lstm", active=True), _match("none", active=True), margin=0.05),
                *(
                    Better(_match("none", active=True), _match(core, active=True), margin=-0.05)
                    for core in ("lstm", "c_lstm", "om_lstm")
                ),
            )
        ),
        note="as above; above chance is 0.05 above the agent without memory",
    ),
    Claim(
        "figure 8",
        "With small apples on the way UR gates are better on Active Match, in an LSTM and in RMA.",
        _better_with_apples("match_small_apples", "lstm", "rma"),
        note="the recurrent core of RMA, without its reconstruction",
    ),
    Claim(
        "figure 10",
        "With large apples UR gates are better on Active Match, in an LSTM and in a DNC.",
        _better_with_apples("match_large_apples", "lstm", "dnc"),
    ),
    Claim(
        "figure 11",
        "On the control and program tasks of Learning to Execute UR is better than plain gates.",
        All(tuple(better_than(_programs(t, "ur_lstm"), "lstm") for t in ("control", "program"))),
        note=_FEW_PROGRAMS,
    ),
    Claim(
        "figure 11",
        "On the addition task of Learning to Execute uniform gates alone are best.",
        better_than(_programs("addition", "u_lstm"), "lstm", "c_lstm", "om_lstm", "ur_lstm"),
        note=_FEW_PROGRAMS,
    ),
    Claim(
        "figure 11",
        "Chrono gates are poor in Learning to Execute: worse than plain ones on addition.",
        better_than(_programs("addition", "lstm"), "c_lstm"),
        note=_FEW_PROGRAMS,
    ),
    Claim(
        "figure 6",
        "On words UR gates have a lower perplexity than plain ones, chrono gates a higher one.",
        All((better_than(_words("ur_lstm"), "lstm"), better_than(_words("lstm"), "c_lstm"))),
        note="PTB in place of WikiText-103",
    ),
)
