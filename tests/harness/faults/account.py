"""A consumer's own database, its cursors beside what events have done, and what was found in it."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import Self

import httpx
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from zeroeventhub import AsyncClient, AsyncConsumer, Client, Consumer, CursorStore
from zeroeventhub.errors import ProtocolError, TransientError


@dataclass
class Findings:
    """Add up what was found."""

    counts: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)

    def compare(
        self,
        name: str,
        truth: Mapping[int, Sequence[int]],
        seen: Mapping[int, Sequence[int]],
        *beside: object,
    ) -> None:
        """Compare numbers of events with those that took effect, in their order."""
        wrong: Counter[str] = Counter()
        for each in truth.keys() | seen.keys():
            expected, found = truth.get(each, ()), seen.get(each, ())
            once = list(dict.fromkeys(found))
            wrong["lost"] += len(set(expected) - set(found))
            wrong["twice"] += len(found) - len(once)
            wrong["inverted"] += sum(one > other for one, other in pairwise(once))
            wrong["invented"] += len(set(found) - set(expected))
        self.counts["events"] += sum(map(len, truth.values()))
        self.counts += wrong
        if wrong.total():
            self.complaints.append(f"{name}: {dict(+wrong)} {beside or ''}")

    def add(self, other: "Findings") -> None:
        self.counts += other.counts
        self.complaints += other.complaints


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Let every exception say what does it again."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"To do it again: {name}")
        raise


effects = sa.Table(
    "effects",
    sa.MetaData(),
    sa.Column("arrival", sa.Integer, primary_key=True),
    sa.Column("consumer", sa.String(100), nullable=False, index=True),
    sa.Column("partition", sa.Integer, nullable=False),
    sa.Column("n", sa.Integer, nullable=False),
    sqlite_autoincrement=True,
)

PATIENCE = 10  # seconds that a client waits for bytes; here they come or do not

WIRE = (TransientError, ProtocolError)
"""What a consumer may end in because of the wire, and is started again after."""

ONCE = {"follow": False, "attempts": 1}
"""A consumer that ends at the head, and in the first error: its restarts take no time."""


class Account:
    """Keep the cursors and effects of consumers in an SQLite database that does not exist yet."""

    def __init__(self, path: Path) -> None:
        self.engine = sa.create_engine(f"sqlite:///{path}")
        self.async_engine = create_async_engine(f"sqlite+aiosqlite:///{path}")

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[Self]:
        """Keep an account, and close it in the end."""
        account = cls(path)
        with account.engine.begin() as connection:
            CursorStore(account.engine).create_tables(connection)
            effects.metadata.create_all(connection)
        yield account
        account.engine.dispose()  # the connections of the async one are its reader's

    def read_in_turn(
        self, client: Client, name: str, *, pages: int | None = None, **options
    ) -> None:
        """Apply a feed's pages one after the other, to its head, or so many of them."""
        consumer = Consumer(client, CursorStore(self.engine), name, **ONCE | options)
        for page in islice(consumer, pages):
            with self.engine.begin() as connection:
                connection.execute(sa.insert(effects), _rows(name, page))
                page.commit(connection)

    def read_beside(self, client: Client, name: str, **options) -> None:
        """Apply a feed's pages, partitions beside each other, to its head."""

        def apply(connection, page):
            connection.execute(sa.insert(effects), _rows(name, page))

        Consumer(client, CursorStore(self.engine), name, **ONCE | options).run(apply)

    async def read_async(self, url: str, name: str, *, packed: bool, **options) -> None:
        """Apply a feed's pages in tasks, to its head, and close the connections."""

        async def apply(connection, page):
            await connection.execute(sa.insert(effects), _rows(name, page))

        store = CursorStore(self.async_engine)
        try:
            async with httpx.AsyncClient(timeout=PATIENCE, verify=False) as session:
                client = AsyncClient(url, session, compressed=packed)
                await AsyncConsumer(client, store, name, **ONCE | options).run(apply)
        finally:
            await self.async_engine.dispose()

    def seen(self, name: str) -> dict[int, list[int]]:
        """Return the numbers of events that took effect, by partition, in their order."""
        query = sa.select(effects.c.partition, effects.c.n).where(effects.c.consumer == name)
        found = defaultdict(list)
        with self.engine.connect() as connection:
            for partition, number in connection.execute(query.order_by(effects.c.arrival)):
                found[partition].append(number)
        return dict(found)


def until_done(consume: Callable[[], object]) -> Counter[str]:
    """Start a consumer until it ends without an error of the wire; count the errors."""
    met: Counter[str] = Counter()
    while True:
        try:
            consume()
        except WIRE as error:
            met[type(error).__name__] += 1
        else:
            return met


def _rows(name: str, page) -> list[dict[str, object]]:
    return [
        {"consumer": name, "partition": page.partition, "n": each.data["n"]} for each in page.events
    ]
