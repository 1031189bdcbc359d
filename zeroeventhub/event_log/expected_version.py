"""What is said of a key's version before something is appended to it."""

from enum import Enum, auto
from typing import Any

from zeroeventhub.errors import ConfigurationError

__all__ = ["ExpectedVersion", "check_expected", "is_expected"]


class ExpectedVersion(Enum):
    """Say what has to be true of a key for events to be appended to it, where no number says it.

    Attributes:
        ANY: nothing; they come behind whatever is there.
        NO_EVENTS: nothing was appended to it yet, as the number 0 says it too.
        SOME_EVENTS: something was appended to it, whatever its version.
    """

    ANY = auto()
    NO_EVENTS = auto()
    SOME_EVENTS = auto()


def check_expected(expected: Any) -> None:
    """Refuse what no version can be.

    Raises:
        ConfigurationError: it is neither a number from 0 on nor an ExpectedVersion.
    """
    if isinstance(expected, ExpectedVersion):
        return
    if isinstance(expected, bool) or not isinstance(expected, int) or expected < 0:
        raise ConfigurationError(
            f"An expected version is that of the key's last event, 0 where there is none, or an "
            f"ExpectedVersion; {expected!r} is neither."
        )


def is_expected(expected: int | ExpectedVersion, version: int) -> bool:
    """Tell whether a key has a version that is expected."""
    match expected:
        case ExpectedVersion.ANY:
            return True
        case ExpectedVersion.NO_EVENTS:
            return version == 0
        case ExpectedVersion.SOME_EVENTS:
            return version > 0
    return version == expected
