"""`python -m rlgates.experiments.cli`: the `rlgates` command."""

import sys

from rlgates.experiments.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
