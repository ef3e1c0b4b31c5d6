"""One tree of errors. Each message is one line: what was expected, what came, what to do."""

from __future__ import annotations


class RemnantError(Exception):
    """Base of every error that a user can cause and mend. The command exits with 2 on it.

    The message stays one line whatever a user's file or flag put into it.
    """

    def __init__(self, message: str) -> None:
        super().__init__("".join(c if c.isprintable() else ascii(c)[1:-1] for c in message))


class InputError(RemnantError):
    """A flag, a value or a shape is not what it has to be."""


class DataError(RemnantError):
    """A dataset is missing, malformed or too small."""


class WeightsError(RemnantError):
    """A weights file is missing, malformed, unsafe or does not fit the model."""


class StoreError(RemnantError):
    """A run's directory cannot be written, read or resumed."""


def expected(what: str, wanted: object, got: object, do: str = "") -> str:
    """The house sentence: `what: expected wanted, got got; do`."""
    sentence = f"{what}: expected {wanted}, got {got}"
    return f"{sentence}; {do}" if do else sentence
