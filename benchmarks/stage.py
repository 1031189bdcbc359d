"""Where suites find what they measure: databases, publishers, and who reads them."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.databases import POSTGRESQL_VARIABLE, mariadb_server, new_database, postgresql_server
from harness.peer import environment_with
from sqlalchemy import Engine, create_engine, make_url, text

from benchmarks.acting import Actor, acting
from benchmarks.cpu import Meter, of_postgresql, of_process
from benchmarks.events import feed_table, fill
from benchmarks.measuring import Run
from benchmarks.servers import postgresql_on_network

PAGE = 1_000


@dataclass
class Stage:
    """Provide what suites need, each thing once.

    Attributes:
        events: how many events a run has.
        rows: how many a long table has.
        count: how many rounds there are.
        tell: is told how it goes.
        stack: ends what was begun.
        filled: how many events are in each table, by its database and its name.
    """

    events: int
    rows: int
    count: int
    tell: Callable[[str], object]
    stack: ExitStack
    filled: dict[tuple[str, str], int] = field(default_factory=dict)

    @cached_property
    def folder(self) -> Path:
        """Return a folder for files."""
        return Path(self.stack.enter_context(TemporaryDirectory(prefix="zeroeventhub-bench-")))

    @cached_property
    def postgresql(self) -> str:
        """Return the URL of a PostgreSQL database."""
        server = self.stack.enter_context(postgresql_server())
        if POSTGRESQL_VARIABLE not in os.environ:
            # The tests' own does without; effects that are not on the disk are not committed.
            with self.engine(server) as engine:
                connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
                with connection:
                    connection.execute(text("ALTER SYSTEM SET fsync = on"))
                    connection.execute(text("SELECT pg_reload_conf()"))
        return self.stack.enter_context(new_database(server))

    @cached_property
    def sqlite(self) -> str:
        """Return the URL of an SQLite database."""
        return f"sqlite:///{self.folder / 'feed.db'}"

    @cached_property
    def mariadb(self) -> str:
        """Return the URL of a MariaDB database."""
        server = self.stack.enter_context(mariadb_server())
        return self.stack.enter_context(new_database(server))

    @cached_property
    def backends(self) -> Meter:
        """Return what measures the PostgreSQL server."""
        return of_postgresql(self.postgresql)

    @property
    def plain_url(self) -> str:
        """Return the URL of the PostgreSQL database as its drivers want it."""
        url = make_url(self.postgresql).set(drivername="postgresql")
        return url.render_as_string(hide_password=False)

    @contextmanager
    def engine(self, url: str) -> Iterator[Engine]:
        """Open a database."""
        engine = create_engine(url)
        yield engine
        engine.dispose()

    def table(self, name: str, form: str, count: int, *, url: str = "", members: str = "") -> str:
        """Fill a table of events, unless it is there already; return its name."""
        place = url or self.postgresql, name
        if self.filled.get(place) != count:
            self.tell(f"{count:,} events into {name}")
            with self.engine(place[0]) as engine:
                fill(engine, feed_table(name, form), count, members=members)
            self.filled[place] = count
        return name

    @contextmanager
    def publisher(
        self,
        *tables: str,
        form: str = "jsonb",
        url: str = "",
        plain: bool = False,
        arrow: bool = False,
        archive: str | None = None,
        cache: str | None = None,
    ) -> Iterator[tuple[Actor, dict[str, Meter]]]:
        """Start a publisher of tables; yield it, and what measures it and its database.

        Args:
            tables: filled before, in one form.
            form: of their data.
            url: of their database; the PostgreSQL by default.
            plain: whether to use the loop and the parser of pure Python.
            arrow: whether it sends Arrow to those who ask for it.
            archive: the folder of the feed's archive, if it has one.
            cache: the folder of what is fetched of it.
        """
        task = {
            "database": url or self.postgresql,
            "tables": tables,
            "form": form,
            "archive": archive,
            "cache": cache,
            "arrow": arrow,
            "loop": "asyncio" if plain else "uvloop",
            "http": "h11" if plain else "httptools",
        }
        with acting("publisher", task) as publisher:
            meters = {"publisher": of_process(publisher.number)}
            if not url:
                meters["database"] = self.backends
            yield publisher, meters

    @contextmanager
    def draining(
        self, table: str, **options: Any
    ) -> Iterator[tuple[Actor, Actor, dict[str, Meter]]]:
        """Start a publisher of a table and a reader; yield them, and what measures the publisher.

        Args:
            table: filled before.
            options: of the publisher.
        """
        with self.publisher(table, **options) as (publisher, meters):
            task = {"port": publisher.ready["port"], "path": events_path(table)}
            with acting("drain", task) as reader:
                yield publisher, reader, meters

    def drained(self, table: str, **options: Any) -> Run:
        """Drain a feed from its first event to its last."""
        with self.draining(table, **options) as (_, reader, meters):
            reader.act({"cursor": "_last", "events": 1})
            run = reader.run(meters, {"cursor": "_first", "events": self.events})
        assert run.events == self.events  # noqa: S101 - else it would be no measure
        return run

    @contextmanager
    def peer(self, table: str) -> Iterator[tuple[Actor, dict[str, Meter]]]:
        """Start the Python peer's publisher; yield it, and what measures it and its database."""
        task = {"database": self.plain_url, "table": table}
        with acting("peer_server", task, python=peer_python()) as publisher:
            meters = {"publisher": of_process(publisher.number), "database": self.backends}
            yield publisher, meters


class NetworkStage(Stage):
    """Provide the same with a database that is reached over TCP."""

    @classmethod
    def of(cls, stage: Stage) -> "NetworkStage":
        """Set up such a stage beside another one."""
        return cls(stage.events, stage.rows, stage.count, stage.tell, stage.stack)

    @cached_property
    def postgresql(self) -> str:
        """Return the URL of a PostgreSQL database."""
        server = self.stack.enter_context(postgresql_on_network())
        return self.stack.enter_context(new_database(server))


def address(publisher: Actor, table: str) -> str:
    """Return the URL of a table's feed."""
    return f"http://127.0.0.1:{publisher.ready['port']}/{table}"


def events_path(table: str) -> str:
    """Return where pages of a table's feed are, with CURSOR in the place of their cursor."""
    return f"/{table}/events?token=1&partition=0&cursor=CURSOR&pagesizehint={PAGE}"


PEER_PATH = f"/feed/v1?n=1&cursor0=CURSOR&pagesizehint={PAGE}"
"""The same of the Python peer's."""

PEER = ["zeroeventhub==0.2.3", "uvicorn", "uvloop", "httptools", "psycopg[binary]"]


def peer_python() -> Path:
    """Return the interpreter of an environment that has the published Python peer installed."""
    return environment_with(PEER, Path(__file__).parents[1] / ".venv-bench-peer")
