"""`rlgates`, and `python -m rlgates`, which torchrun can start: the command line.

It is the top layer: nothing imports it, and it imports nothing but the command line.
"""

import sys
from importlib.util import find_spec

LATER = "matplotlib", "scipy"  # which commands import where they need them, perhaps at their end


def main() -> int:
    """Run the command line of this process, or say which package it lacks."""
    try:
        for package in LATER:
            if find_spec(package) is None:
                raise ModuleNotFoundError(name=package)
        from rlgates.experiments.cli.main import main as run
    except ModuleNotFoundError as error:
        package = (error.name or "rlgates").partition(".")[0]
        if package == "rlgates":
            raise
        sys.stderr.write(
            f"rlgates: error: the command needs {package}: install rlgates with its extra "
            "[experiments].\n"
        )
        return 2
    except KeyboardInterrupt:  # while torch is imported, before anything was started
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
