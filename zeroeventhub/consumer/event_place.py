"""Which event of a page an error belongs to: a note of the error, which its stored text has too."""

from collections.abc import Sequence

from zeroeventhub.protocol import Event
from zeroeventhub.wire.cloud_event import event_id

_NOTE = "zeroeventhub: "


def place_of(event: Event, events: Sequence[Event], cursor: str) -> str:
    """Describe where an event is in the page that follows a cursor, and its id if it has one."""
    number = next(number for number, one in enumerate(events, start=1) if one is event)
    identity = event_id(event)
    named = "" if identity is None else f" (id {identity!r})"
    return f"event {number} of {len(events)} after cursor {cursor!r}{named}"


def note_place(error: BaseException, place: str) -> None:
    """Add to an error which event it belongs to, once if the same object is raised again."""
    if _noted(error) != place:
        error.add_note(f"{_NOTE}{place}")


def place_in(text: str) -> str:
    """Return the place that the stored text of an error names; empty if it names none."""
    lines = [line for line in text.splitlines() if line.startswith(f"{_NOTE}event ")]
    return lines[-1].removeprefix(_NOTE) if lines else ""


def at(error: BaseException) -> str:
    """Return the place of an error, to be put behind what it says; empty if it has none."""
    place = _noted(error)
    return f" at {place}" if place else ""


def _noted(error: BaseException) -> str:
    return place_in("\n".join(getattr(error, "__notes__", ())))
