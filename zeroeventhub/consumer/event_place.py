"""The event at which an error was raised: a note on the error, which its stored text has too."""

from collections.abc import Sequence

from zeroeventhub.protocol import Event
from zeroeventhub.wire.cloud_event import event_id

_NOTE = "zeroeventhub: "


def place_of(event: Event, events: Sequence[Event], cursor: str) -> str:
    """Describe where an event is in the page that follows a cursor, and its id if it has one."""
    number = next(number for number, other in enumerate(events, start=1) if other is event)
    identity = event_id(event)
    with_id = "" if identity is None else f" (id {identity!r})"
    return f"event {number} of {len(events)} after cursor {cursor!r}{with_id}"


def note_place(error: BaseException, place: str) -> None:
    """Add to an error the event at which it was raised; only once if it is raised again."""
    if _noted_place(error) != place:
        error.add_note(f"{_NOTE}{place}")


def place_in(text: str) -> str:
    """Return the place that the stored text of an error names; empty if it names none."""
    lines = [line for line in text.splitlines() if line.startswith(f"{_NOTE}event ")]
    return lines[-1].removeprefix(_NOTE) if lines else ""


def at_place(error: BaseException) -> str:
    """Return " at " and the place of an error, for the end of a sentence; empty without a place."""
    place = _noted_place(error)
    return f" at {place}" if place else ""


def _noted_place(error: BaseException) -> str:
    return place_in("\n".join(getattr(error, "__notes__", ())))
