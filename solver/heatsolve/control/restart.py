"""Where a run begins: anew, or from a checkpoint of an interrupted or finished run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from heatsolve.control.controller import State, Store
from heatsolve.errors import FileFailure, HeatsolveError, InputError

RECORD = {"case": str, "unit": str, "frames": list}
"""What every checkpoint of a run has in its record, and of what type."""


@dataclass(frozen=True)
class Start:
    """What was asked for.

    `restart`: from the newest checkpoint, if there is one; `checkpoint`: from this one;
    `overwrite`: anew, also if that removes the checkpoints of an unfinished run.
    """

    restart: bool = False
    checkpoint: Path | None = None
    overwrite: bool = False


class Talk(Protocol):
    """Says what happens to the user."""

    def line(self, text: str = "") -> None:
        """Say a sentence."""

    def warn(self, sentence: str) -> None:
        """Say a warning."""


def find_state(
    store: Store, start: Start, obstacle: Callable[[State], str], talk: Talk
) -> State | None:
    """The state to begin from, None for a fresh start; asks all processes.

    `obstacle` gives the reason why this run cannot go on from a state, nothing if it can, and
    raises InputError for a state of another case. Raises InputError where the case has changed too
    much since, or where a fresh start would remove the checkpoints of an unfinished run;
    FileFailure for a damaged `start.checkpoint`.
    """
    passed_by: list[str] = []

    def agree(state: State, error: type[HeatsolveError] = FileFailure) -> None:
        if not all(isinstance(state.record.get(key), kind) for key, kind in RECORD.items()):
            raise FileFailure(f"the checkpoint after {state.number} is not one of a run")
        reason = obstacle(state)
        if reason:
            passed_by.append(
                f"this run cannot go on from the checkpoint after {state.number} "
                f"{state.record['unit']} in {store.folder}: {reason}"
            )
            raise error(passed_by[-1])

    state = None
    if start.checkpoint is not None:
        state = store.load(start.checkpoint, lambda state: agree(state, InputError))
        if state.record["frames"] and start.checkpoint.parent.resolve() != store.folder.resolve():
            raise InputError(
                "--restart-from: a march goes on only in the file of its first frames, "
                f"the one beside {start.checkpoint.parent}"
            )
    elif start.restart:
        state = store.newest(agree)
        for sentence in store.damaged:
            talk.warn(sentence)
        if state is None and passed_by:
            raise InputError(f"{passed_by[0]} (--overwrite starts anew)")
        if state is None:
            talk.line(f"no checkpoint in {store.folder}, a fresh start")
    elif not start.overwrite:
        _refuse_unfinished(store)
    if state is not None:
        talk.line(f"goes on after {state.number} {state.record['unit']}")
    return state


def _refuse_unfinished(store: Store) -> None:
    latest = store.latest()
    if latest is not None and not latest.finished:
        raise InputError(
            f"{store.folder} holds an unfinished run, stopped after {latest.number} "
            f"{latest.record['unit']}: go on with --restart, or begin anew with --overwrite"
        )
