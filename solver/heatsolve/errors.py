"""What can go wrong in a run, each with the exit code that the command line promises.

Every message is one sentence for the user; the command line prints it without a traceback.
"""


class HeatsolveError(Exception):
    """Base of all errors that a user can meet; the program ends with its `exit_code`."""

    exit_code = 1


class InputError(HeatsolveError):
    """Bad input or a missing device: the case, the command line or the machine is at fault."""

    exit_code = 2


class CaseError(InputError):
    """A case is not valid: the message has one line for each mistake, with its place."""


def sentence(error: HeatsolveError) -> str:
    """What the program says of an error: a mistake in a case begins with its place."""
    return str(error) if isinstance(error, CaseError) else f"heatsolve: {error}"


class NotConverged(HeatsolveError):
    """A march in time cannot go on, because a step's system was not solved."""

    exit_code = 3


class Diverged(HeatsolveError):
    """NaN, Inf or unbounded growth: the numbers are no longer a solution."""

    exit_code = 4


class MachineFailure(HeatsolveError):
    """A library that the run depends on failed on the way."""


class FileFailure(HeatsolveError):
    """A file could not be read or written: disk full, locked, corrupt."""

    exit_code = 6


class Interrupted(HeatsolveError):
    """A signal ended the run; a checkpoint was written (EX_TEMPFAIL: start me again).

    After Ctrl-C the exit code is another one.
    """

    exit_code = 75

    def __init__(self, message: str, exit_code: int = exit_code):
        super().__init__(message)
        self.exit_code = exit_code
