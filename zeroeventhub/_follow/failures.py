"""What becomes of events that cannot be applied."""

from dataclasses import dataclass
from typing import Literal

from zeroeventhub.errors import ConfigurationError

__all__ = ["Failures"]


@dataclass(frozen=True)
class Failures:
    """Say what becomes of a page whose handler raises.

    Attributes:
        tries: how often a page is applied before it counts as failed.
        then: "halt" lets the partition stand still; "set-aside" writes the events that fail to
            the dead letters, in the transaction that moves the cursor, and goes on. Each event is
            then applied for itself; a handler of pages is given pages of one event.
        hold_back: whether later events of the same key are set aside behind one that failed, so
            that the key's order is kept.
        at_most: how many dead letters a partition may have, failed and held back; at the next
            one it stands still.
    """

    tries: int = 3
    then: Literal["halt", "set-aside"] = "halt"
    hold_back: bool = False
    at_most: int = 1000

    def __post_init__(self) -> None:
        """Refuse what could not be done.

        Raises:
            ConfigurationError: a value is out of its range, or two contradict each other.
        """
        if self.tries < 1:
            raise ConfigurationError("A page is tried at least once: tries is 1 or more.")
        if self.then not in {"halt", "set-aside"}:
            raise ConfigurationError(
                f'What fails can "halt" its partition or be "set-aside", not {self.then!r}.'
            )
        if self.at_most < 1:
            raise ConfigurationError(
                'Where events are "set-aside" there is room for one: at_most is 1 or more.'
            )
        if self.hold_back and self.then == "halt":
            raise ConfigurationError(
                "Nothing can be held back where a partition halts: hold_back goes with "
                'then="set-aside".'
            )
