"""What becomes of a publisher's database: failovers, backups, crashes, emptied tables."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from sqlalchemy import create_engine, event, make_url, text

from harness.clusters import PATIENCE, Cluster
from harness.dumps import restore

__all__ = ["Disaster", "Place"]


class Place:
    """Know where a publisher's database is by now, as a name does that leads to it.

    Args:
        url: where it is at first.
        new_database: makes another one beside it.
        server: whose database it is, where that is a server of one's own.
    """

    def __init__(
        self,
        url: str,
        new_database: Callable[[], AbstractContextManager[str]],
        server: Cluster | None = None,
    ) -> None:
        self.url = make_url(url)
        self.new_database = new_database
        self.server = server
        # SQLite queues writers without order.
        arguments = {"timeout": PATIENCE} if self.url.get_backend_name() == "sqlite" else {}
        self.engine = create_engine(url, connect_args=arguments)
        event.listen(self.engine, "do_connect", self._lead)

    def move(self, url: object) -> None:
        """Let the engine lead to another database from now on."""
        self.url = make_url(url)
        self.engine.dispose()

    def run(self, *statements: str) -> None:
        """Run statements, each in a transaction of its own."""
        with self.engine.connect() as connection:
            for statement in statements:
                connection.execute(text(statement))
                connection.commit()

    def _lead(self, dialect, _record, _arguments, parameters) -> None:
        _, found = dialect.create_connect_args(self.url)
        parameters.update(found)


Disaster = Callable[[Place], AbstractContextManager[Callable[[], None]]]
"""Prepare one, and yield what lets it happen; what is written in between may be lost by it."""


@contextmanager
def failover(place: Place) -> Iterator[Callable[[], None]]:
    """Promote a standby that has everything."""
    with place.server.standby() as standby:

        def strike() -> None:
            standby.catch_up(place.server)
            _promote(standby, place)

        yield strike


@contextmanager
def lagging_failover(place: Place) -> Iterator[Callable[[], None]]:
    """Promote a standby that has heard of nothing since this."""
    with place.server.standby() as standby:
        standby.catch_up(place.server)
        standby.cut_off()
        yield lambda: _promote(standby, place)


def _promote(standby: Cluster, place: Place) -> None:
    standby.promote()
    place.move(place.url.update_query_dict({"host": standby.socket}))


@contextmanager
def dump(place: Place) -> Iterator[Callable[[], None]]:
    """Dump and restore everything."""
    with _another(place) as url:

        def strike() -> None:
            restore(_shown(place.url), url)
            place.move(url)

        yield strike


@contextmanager
def backup(place: Place) -> Iterator[Callable[[], None]]:
    """Restore a dump that was made here."""
    with _another(place) as url:
        restore(_shown(place.url), url)
        yield lambda: place.move(url)


@contextmanager
def copied_file(place: Place) -> Iterator[Callable[[], None]]:
    """Put back a copy of an SQLite file that was made here."""
    file = Path(place.url.database)
    copy = file.with_suffix(".copy")
    place.engine.dispose()
    shutil.copy(file, copy)

    def strike() -> None:
        place.engine.dispose()
        shutil.copy(copy, file)

    yield strike


@contextmanager
def crash(place: Place) -> Iterator[Callable[[], None]]:
    """Let a server crash that says of commits that they are safe before they are."""
    place.run(f"ALTER DATABASE {place.url.database} SET synchronous_commit = off")
    place.engine.dispose()

    def strike() -> None:
        place.server.restart("immediate")
        place.engine.dispose()

    yield strike


EMPTY = {
    "postgresql": ["TRUNCATE log RESTART IDENTITY"],
    "mariadb": ["TRUNCATE log"],
    "sqlite": ["DELETE FROM log", "DELETE FROM sqlite_sequence WHERE name = 'log'"],
}


@contextmanager
def emptied_table(place: Place) -> Iterator[Callable[[], None]]:
    """Empty the table, and let its numbers begin again."""
    yield lambda: place.run(*EMPTY[place.url.get_backend_name()])


@contextmanager
def _another(place: Place) -> Iterator[str]:
    """Make an empty database beside; an SQLite file is made by whoever opens it."""
    if place.url.get_backend_name() == "sqlite":
        yield f"sqlite:///{place.url.database}.restored"
        return
    with place.new_database() as url:
        yield url


def _shown(url) -> str:
    return url.render_as_string(hide_password=False)
