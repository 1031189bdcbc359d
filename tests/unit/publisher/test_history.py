"""Histories that are set back and go on otherwise, at random: which cursors a feed still takes."""

import pytest
from harness.statements import add, execute
from harness.tables import event_table
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, Integer, create_engine, text
from sqlalchemy.pool import StaticPool

from zeroeventhub import FIRST, LAST, TableFeed
from zeroeventhub.errors import Diverged, Gone, Trimmed
from zeroeventhub.protocol import TypeFilter

LOG = event_table("log", n=Integer)
NOTHING = TypeFilter(frozenset({"nothing"}))


class World:
    """A feed over a table in memory, and beside it what its history is known to be."""

    def __init__(self, engine: Engine) -> None:
        LOG.metadata.create_all(engine)
        self._engine = engine
        feed = TableFeed(LOG, data=["n"], cloudevents=True)
        self.feed = feed.bind(engine)
        self.history: list[tuple[int, int]] = []
        self.cursors: dict[str, tuple[tuple[int, int], ...]] = {}
        self._drawn = self._written = 0

    def append(self, count: int) -> None:
        """Write events, none of which says what another has said."""
        for _ in range(count):
            self._drawn += 1
            self._written += 1
            self.history.append((self._drawn, self._written))
            add(self._engine, LOG, {"id": self._drawn, "n": self._written})

    def skip(self, count: int) -> None:
        """Draw numbers that no event bears, as writers do who give up."""
        self._draw(self._drawn + count)

    def set_back(self, left: int, jump: int) -> None:
        """Lose all events but the first ones, and a few of the numbers that had been drawn."""
        self.history = self.history[:left]
        last = self.history[-1][0] if self.history else 0
        execute(self._engine, LOG.delete().where(LOG.c.id > last))
        self._draw(last + jump)

    def take(self, way: int, part: int) -> None:
        """Keep a cursor that is given now, in one of many ways."""
        place = min(part, len(self.history))
        position = self.history[place - 1][0] if place else 0
        cursor = (
            self.feed.read(0, FIRST, max(part, 1)).cursor,
            self.feed.read(0, LAST, 1).cursor,
            self.feed.cursor_after(position),
            self.feed.read(0, FIRST, 1000, types=NOTHING).cursor,
        )[way]
        stands = 0 if cursor == FIRST else int(cursor.split("-")[1])
        self.cursors[cursor] = self._until(stands)

    def judge(self) -> None:
        """Show of every cursor that it is taken if, and only if, all before it is the same."""
        for cursor, before in self.cursors.items():
            stands = before[-1][0] if before else 0
            same = self._until(stands) == before
            try:
                seen = self._read(cursor)
            except Gone as error:
                refused: Gone | None = error
                with pytest.raises(Gone):
                    self.feed.read(0, FIRST, 10, stop=cursor)
            else:
                refused = None
                assert seen == [n for position, n in self.history if position > stands]
            assert (refused is None) == same
            if refused:
                # Beyond the last number drawn there is another history, even if nothing is left.
                diverged = self._until(stands) or stands > self._drawn
                assert type(refused) is (Diverged if diverged else Trimmed)

    def _read(self, cursor: str) -> list[int]:
        """Read on to the end, in small pages."""
        seen = []
        while True:
            page = self.feed.read(0, cursor, 3)
            seen += [event.data["data"]["n"] for event in page.events]
            if not page.events:
                assert page.cursor == (cursor if cursor != FIRST else "1-0")
                return seen
            cursor = page.cursor

    def _until(self, position: int) -> tuple[tuple[int, int], ...]:
        return tuple(event for event in self.history if event[0] <= position)

    def _draw(self, number: int) -> None:
        self._drawn = number
        with self._engine.begin() as connection:
            connection.execute(text("DELETE FROM sqlite_sequence WHERE name = 'log'"))
            drawn = text("INSERT INTO sqlite_sequence (name, seq) VALUES ('log', :number)")
            connection.execute(drawn, {"number": number})


few = st.integers(0, 8)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5)),
        st.tuples(st.just("skip"), st.integers(1, 4)),
        st.tuples(st.just("set_back"), few, st.sampled_from([0, 0, 0, 1, 5])),
        st.tuples(st.just("take"), st.integers(0, 3), few),
    ),
    min_size=4,
    max_size=20,
)


@pytest.mark.slow
@settings(max_examples=25)
@given(steps)
@example([("append", 3), ("take", 0, 3), ("set_back", 2, 0), ("append", 2)])
@example([("append", 5), ("take", 3, 3), ("set_back", 3, 1), ("append", 1), ("take", 1, 0)])
def test_cursor_is_taken_if_its_history_is_the_same(steps):
    """A cursor is taken if all events up to it are the same, and refused if not."""
    engine = create_engine(
        "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
    )
    try:
        world = World(engine)
        for step, *arguments in steps:
            getattr(world, step)(*arguments)
            world.judge()
    finally:
        engine.dispose()
