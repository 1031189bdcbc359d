"""Leave out events that come a second time."""

from collections.abc import Collection, Sequence

from zeroeventhub.protocol import Event

__all__ = ["without_duplicates"]


def without_duplicates(
    events: Sequence[Event], ids: Sequence[str | None], unseen: Collection[str]
) -> list[Event]:
    """Return the first event of each id that was not seen before, and those without an id.

    Args:
        events: the events, in their order.
        ids: the id of each; None where it has none.
        unseen: the ids that were not seen before.
    """
    left = set(unseen)
    fresh = []
    for event, one in zip(events, ids, strict=True):
        if one is None:
            fresh.append(event)
        elif one in left:
            left.remove(one)
            fresh.append(event)
    return fresh
