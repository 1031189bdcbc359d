"""An event that is about to be appended."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from uuid import uuid4

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import Event

__all__ = ["LONGEST_NAME", "NewEvent", "check_name"]

LONGEST_NAME = 200
"""The most characters that the id, the key or the type of an event has."""


@dataclass(frozen=True)
class NewEvent:
    """Hold an event that is about to be appended.

    Attributes:
        type: what has happened.
        data: a dict, a list or a string; what `json.dumps` takes, without NaN and infinities.
        key: what it has happened to; events of one key keep their order. None where nothing is to
            be in order with it.
        id: tells it from all others. An event that is appended again under its id is there once, so
            give it one that is the same when whatever makes it is tried again; by default it is
            random, and the same for this object.

    Raises:
        ConfigurationError: an attribute cannot be stored on every database.
    """

    type: str
    data: Any
    key: str | None = None
    id: str = field(default_factory=lambda: str(uuid4()))

    def __post_init__(self) -> None:
        """Refuse what some database would refuse, cut, or take for something else."""
        check_name("type", self.type)
        check_name("id", self.id)
        if self.key is not None:
            check_name("key", self.key)

    @cached_property
    def text(self) -> str:
        """Return the JSON of the data.

        Raises:
            ConfigurationError: it has none, has U+0000 in it, which PostgreSQL does not store, or
                is a bare number, of which SQLite would make another one.
        """
        text = Event.of(self.data).raw.decode()
        if text.lstrip()[:1] in "-0123456789":
            raise ConfigurationError(
                f"The event's data is a bare number, {text[:40]}, which not every database keeps "
                'as it is: put it into an object, such as {"amount": 12.5}.'
            )
        if "\\u0000" in text.replace("\\\\", ""):
            raise ConfigurationError("The event's data holds U+0000, which PostgreSQL refuses.")
        return text


def check_name(attribute: str, value: Any) -> None:
    """Refuse a name that not every database tells from all others.

    Raises:
        ConfigurationError: it is no text, is empty or too long, or ends with a space.
    """
    if not isinstance(value, str):
        raise ConfigurationError(f"The {attribute} of an event is text; {value!r} is not.")
    if not 0 < len(value) <= LONGEST_NAME:
        raise ConfigurationError(
            f"The {attribute} of an event has 1 to {LONGEST_NAME} characters; this one has "
            f"{len(value)}."
        )
    if value.endswith(" ") or "\0" in value:
        raise ConfigurationError(
            f"The {attribute} {value!r} of an event ends with a space, which MariaDB and MySQL "
            "overlook, or has U+0000 in it, which PostgreSQL refuses."
        )
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ConfigurationError(f"The {attribute} {value!r} of an event has no UTF-8.")
