"""The wish that a run stops, which a signal makes; it imports nothing, to be there at once."""


class Wish:
    """Whether somebody wants this process to stop; a signal handler may make it, also twice."""

    def __init__(self) -> None:
        self.made = False

    def make(self, *_: object) -> None:
        self.made = True
