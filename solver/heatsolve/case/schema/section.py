"""What all sections of a case file are, and the fields that they speak of."""

from typing import Annotated

import pydantic
from pydantic import Strict

from heatsolve.case.types import Found, Mistakes
from heatsolve.stencil.expressions import compile_expression

ZERO, ONE = (compile_expression(text, (), {}) for text in ("0.0", "1.0"))

FIELDS = ("temperature", "concentration", "velocity_x", "velocity_y", "velocity_z", "pressure")
"""Of the built-in models."""
FieldName = Annotated[str, Strict()]
"""Of the model: `conflicts` knows which it has."""


class Section(pydantic.BaseModel):
    """A table of the case file: frozen, and without any key but its own."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def attributes(cls) -> dict[str, str]:
        """The attribute of each key."""
        return {info.alias or name: name for name, info in cls.model_fields.items()}

    def mistakes(self) -> Found:
        """Yield what no single value shows: key path below this section, sentence."""
        yield from ()

    @pydantic.model_validator(mode="after")
    def _refuse_mistakes(self) -> "Section":
        if found := tuple(self.mistakes()):
            raise Mistakes(*found)
        return self

    def _one_of(self, *keys: str) -> Found:
        if sum(getattr(self, key) is not None for key in keys) != 1:
            yield (), f"give exactly one of {', '.join(keys)}"
