"""`python -m rlgates`: the `rlgates` command, as a module that torchrun can start.

It stands above all floors of the house: nothing imports it, and it imports the command line alone.
"""

import sys

from rlgates.experiments.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
