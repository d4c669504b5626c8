"""The STUDIES table: what `rlgates sweep NAME` makes, one file for each paper."""

from __future__ import annotations

from rlgates.experiments.studies import (
    gato2020,
    gu2020,
    hung2019,
    janet2018,
    memory_suite,
    ohno2022,
    ours,
    popgym,
    zakovskis2023,
)
from rlgates.experiments.studies.space import Choice, Range
from rlgates.experiments.studies.study import Arm, EqualParameters, Published, Study

__all__ = [
    "FORMER_NAMES",
    "STUDIES",
    "Arm",
    "Choice",
    "EqualParameters",
    "Published",
    "Range",
    "Study",
]

STUDIES: dict[str, Study] = {
    **ours.STUDIES,
    **popgym.STUDIES,
    **memory_suite.STUDIES,
    **gu2020.STUDIES,
    **hung2019.STUDIES,
    **ohno2022.STUDIES,
    **gato2020.STUDIES,
    **zakovskis2023.STUDIES,
    **janet2018.STUDIES,
}

FORMER_NAMES = {
    "active_match": "match",
    "copy_aba_long": "copy_aba",
    "copy_adding_long": "copy_adding",
    "forgetting_ten": "forgetting",
    "janet_ten": "janet",
    "pooled_pixels": "pixels",
    "residual_long": "residual",
    "tied_copy": "tied_gates",
}
"""What studies were called in the commands of rows that were made earlier."""
