"""`rlgates sweep`, `tune`, `ledger` and `figures`: studies, and what is made of their results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from rlgates.experiments.exits import FINISHED, exit_code
from rlgates.experiments.sweep_config import SweepConfig
from rlgates.experiments.tune_config import TuneConfig
from rlgates.tasks.data import use_data

SWEEP, TUNE = SweepConfig(), TuneConfig()


def sweep(
    study: tyro.conf.Positional[str] = "",
    config: Annotated[SweepConfig, tyro.conf.arg(name="")] = SWEEP,
    data_dir: Path | None = None,
    list: bool = False,
) -> int:
    """Make what is missing of a study, and write its tables and pictures.

    Stop it, or kill it, at any moment: the same command goes on, and nothing is made twice.

    Args:
        study: its name, or a file of Python that defines STUDY.
        data_dir: the folder of the data sets, one folder a set; by default that of RLGATES_DATA.
        list: show the studies, the runs of their tier laptop, and what they repeat.
    """
    from rlgates.experiments.studies import STUDIES
    from rlgates.experiments.sweep import run_sweep

    if list:
        for name, row in STUDIES.items():
            runs = sum(len(arm.cores) for arm in row.arms("laptop")) * len(row.seeds)
            source = f" ({row.source})" if row.source else ""
            print(f"{name:<20}{runs:>5} runs  {row.title}{source}")
        return FINISHED
    if not study:
        raise ValueError("the name of a study is needed; rlgates sweep --list shows all.")
    use_data(data_dir)
    return exit_code(run_sweep(study, config))


def ledger(results: Path = Path("experiments/results")) -> int:
    """Hold the claims of the papers against the tables of the studies, in LEDGER.md.

    Args:
        results: folder of the tables.
    """
    from rlgates.experiments.ledger import write_ledger

    print(write_ledger(results))
    return FINISHED


def tune(
    study: tyro.conf.Positional[str],
    config: Annotated[TuneConfig, tyro.conf.arg(name="")] = TUNE,
    data_dir: Path | None = None,
) -> int:
    """Search the settings of cores on one task of a study; the same command goes on.

    Args:
        study: its name, or a file of Python that defines STUDY.
        data_dir: the folder of the data sets, one folder a set; by default that of RLGATES_DATA.
    """
    from rlgates.experiments.tune import run_tune

    use_data(data_dir)
    return exit_code(run_tune(study, config))


def figures(results: Path = Path("experiments/results"), readme: Path = Path("README.md")) -> int:
    """Draw all pictures and tables again from the small CSV files of the studies.

    Args:
        results: folder of the CSV files.
        readme: text whose tables of cores and results are put in again, if it is there.
    """
    from rlgates.experiments.redraw import redraw

    for path in redraw(results, readme):
        print(path)
    return FINISHED
