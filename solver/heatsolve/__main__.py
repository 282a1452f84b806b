"""`python -m heatsolve` is the program `heatsolve`."""

import sys

from heatsolve.errors import ExitCode


def main() -> None:
    """The program; Ctrl-C ends it with exit code 130, also while it is being loaded."""
    try:
        from heatsolve.cli import main as run
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    run()


if __name__ == "__main__":
    if not sys.flags.safe_path:  # then `python -m` would import from the current folder
        del sys.path[0]
    main()
