"""What is published while consumers are killed: a feed whose every event is known beforehand."""

from dataclasses import dataclass

from zeroeventhub import FIRST, LAST, Event, FeedInfo, Page, errors

KEYS = 3
"""How many keys the events of a partition have, in turn."""


@dataclass(frozen=True)
class Script:
    """Say what each event of a feed is, and what has to become of it.

    Attributes:
        partitions: how many there are.
        poison: whether some events cannot be applied: every third of the partition.
        stubborn: whether nothing of a key can be applied from some event on; the others of the
            key wait behind it.
        repeats: whether every fourth event is one that has been published before.
        start: how many events of each partition the consumer leaves out.
    """

    partitions: int = 2
    poison: bool = False
    stubborn: bool = False
    repeats: bool = False
    start: int = 0

    def number(self, place: int) -> int:
        """Return the number of the event at a place, which is the place unless it is a repeat."""
        return place - 3 if self.repeats and place % 4 == 3 else place

    def is_poison(self, number: int) -> bool:
        """Tell whether applying the event fails."""
        if self.stubborn:
            return number == KEYS + 1
        return self.poison and number % 3 == 1

    def is_set_aside(self, number: int) -> bool:
        """Tell whether the event has to become a dead letter."""
        if self.stubborn:
            return number > KEYS and number % KEYS == 1
        return self.is_poison(number)

    def event(self, partition: int, place: int) -> Event:
        """Make the event at a place of a partition."""
        number = self.number(place)
        return Event.of(
            {
                "specversion": "1.0",
                "id": f"{partition}-{number}",
                "source": "/script",
                "type": "written",
                "subject": f"{partition}-{number % KEYS}",
                "data": {"n": number},
            }
        )

    def effects(self, count: int) -> list[int]:
        """Return what has to have been applied of a partition's first events, in order."""
        return [n for n in self._distinct(count) if not self.is_set_aside(n)]

    def letters(self, count: int) -> list[int]:
        """Return what has to have been set aside of a partition's first events, in order."""
        return [n for n in self._distinct(count) if self.is_set_aside(n)]

    def _distinct(self, count: int) -> list[int]:
        return list(dict.fromkeys(map(self.number, range(self.start, count))))


PLAIN = Script()
"""Events that anybody can apply."""


class ScriptedFeed:
    """Publish a script, up to a place that may be moved."""

    def __init__(self, script: Script, end: int) -> None:
        self.script = script
        self.end = end
        self._made: dict[tuple[int, int], Event] = {}

    async def info(self) -> FeedInfo:
        """Describe the feed as it is now."""
        info = FeedInfo.of(self.script.partitions)
        return FeedInfo(info.partitions, info.token, exactly_once=not self.script.repeats)

    async def read(self, partition: int, cursor: str, limit: int) -> Page:
        """Read the events that follow a cursor; a cursor counts the events before it."""
        place = {FIRST: 0, LAST: self.end}.get(cursor)
        if place is None:
            place = count_of(cursor)
        if place > self.end:
            raise errors.Diverged("The cursor is behind the last event.")
        upto = min(place + limit, self.end)
        events = [self._event(partition, each) for each in range(place, upto)]
        return Page(events, f"c{upto}")

    def _event(self, partition: int, place: int) -> Event:
        key = (partition, place)
        if key not in self._made:
            self._made[key] = self.script.event(partition, place)
        return self._made[key]


def number_of(event: Event) -> int:
    """Return the number of an event, which may be a CloudEvent or the bare data of one."""
    return event.data.get("data", event.data)["n"]


def count_of(cursor: str) -> int:
    """Return how many events are before a cursor."""
    if cursor == FIRST:
        return 0
    if not cursor.startswith("c"):
        raise errors.BadCursor("A cursor of this feed is a c and a number.")
    return int(cursor[1:])
