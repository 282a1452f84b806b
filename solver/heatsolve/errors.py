"""The errors of a run, each with its exit code on the command line.

Every message is one sentence for the user; the command line prints it without a traceback.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit code of the program."""

    DONE = 0
    INTERNAL_ERROR = 1
    BAD_INPUT = 2
    """Also a missing device."""
    NOT_CONVERGED = 3
    DIVERGED = 4
    FAILED = 5
    """A comparison or a verification failed."""
    FILE_FAILURE = 6
    """Disk full, locked, corrupt."""
    STOPPED = 75
    """Stopped by SIGTERM or SIGUSR1, with a checkpoint (EX_TEMPFAIL: to be started again)."""
    INTERRUPTED = 130
    """Stopped by Ctrl-C."""


class HeatsolveError(Exception):
    """Base of all errors that a user can meet; the program ends with its `exit_code`."""

    exit_code = ExitCode.INTERNAL_ERROR


class InputError(HeatsolveError):
    """Bad input or a missing device: the case, the command line or the machine is at fault."""

    exit_code = ExitCode.BAD_INPUT


class CaseError(InputError):
    """A case is not valid: the message has one line for each mistake, with its place."""


def sentence(error: HeatsolveError) -> str:
    """The text of an error for the user: a mistake in a case begins with its place."""
    return str(error) if isinstance(error, CaseError) else f"heatsolve: {error}"


class NotConverged(HeatsolveError):
    """A march in time cannot go on, because a step's system was not solved."""

    exit_code = ExitCode.NOT_CONVERGED


class Diverged(HeatsolveError):
    """NaN, Inf or unbounded growth: the numbers are no longer a solution."""

    exit_code = ExitCode.DIVERGED


class MachineFailure(HeatsolveError):
    """A library that the run depends on failed on the way."""


class FileFailure(HeatsolveError):
    """A file could not be read or written: disk full, locked, corrupt."""

    exit_code = ExitCode.FILE_FAILURE


class Interrupted(HeatsolveError):
    """A signal ended the run; a checkpoint was written."""

    exit_code = ExitCode.STOPPED

    def __init__(self, message: str, exit_code: int = exit_code):
        super().__init__(message)
        self.exit_code = ExitCode(exit_code)
