"""One round: fresh tables, crews that write, readers that page beside them, and a verdict."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from sqlalchemy import Engine, Table, create_engine, insert

from harness.torture import leftovers, schema
from harness.torture.crew import Assignment, Crew, Report
from harness.torture.engines import reading_engine
from harness.torture.freezer import Freezer, backends
from harness.torture.mix import Mix
from harness.torture.reader import Reader
from harness.torture.verdict import Verdict
from harness.torture.watched import WatchedFeed
from zeroeventhub import TableFeed
from zeroeventhub.publisher.ordering import postgresql

JOINING = 60
"""Seconds after which readers that do not come to an end are given up."""


def torture(
    url: str,
    publish: Callable[[Table], TableFeed],
    crews: Sequence[Crew],
    *,
    seed: int,
    seconds: float,
    mix: Mix,
    until_wrong: bool = False,
) -> Verdict:
    """Torture an ordering in an empty database.

    Args:
        url: the database.
        publish: makes the feed of a table.
        crews: processes to write with.
        seed: of all dice.
        seconds: how long the crews write.
        mix: the writers.
        until_wrong: end as soon as anything is wrong.
    """
    verdict = Verdict()
    with ExitStack() as stack:
        engine = stack.enter_context(_disposed(create_engine(url)))
        _prepare(engine, publish, in_wal=seed % 2 == 0)
        readers = [
            Reader(name, feed, f"{seed} {name}")
            for names, feed in _feeds(url, publish, seed, stack)
            for name in names
        ]
        *early, late = readers
        try:
            with _writing(engine, crews, mix, str(seed), verdict):
                for reader in early:
                    reader.start()
                _wait(seconds / 2, readers if until_wrong else ())
                late.start()
                _wait(seconds / 2, readers if until_wrong else ())
            if until_wrong and any(reader.is_wrong for reader in readers):
                _give_up(readers)
            _judge(engine, readers, verdict)
        finally:
            _give_up(readers)
    return verdict


def _give_up(readers: Sequence[Reader]) -> None:
    for reader in readers:
        reader.give_up()


@contextmanager
def _disposed(engine: Engine) -> Iterator[Engine]:
    try:
        yield engine
    finally:
        engine.dispose()


def _prepare(engine: Engine, publish: Callable[[Table], TableFeed], *, in_wal: bool) -> None:
    if engine.dialect.name == "sqlite" and in_wal:
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    with engine.begin() as connection:
        schema.create(connection)
    with engine.begin() as connection:
        for table in schema.FEEDS:
            publish(table).install(connection)


def _feeds(
    url: str, publish: Callable[[Table], TableFeed], seed: int, stack: ExitStack
) -> Iterator[tuple[list[str], WatchedFeed]]:
    """Yield feed objects, each with an ordering of its own, and the names of their readers."""
    for table, names in (
        (schema.events, ["first reader of a shared feed", "second reader of a shared feed"]),
        (schema.events, ["reader with a feed of its own"]),
        (schema.others, ["reader of the other feed"]),
        (schema.events, ["reader that started late"]),
    ):
        engine = reading_engine(url, random.Random(f"{seed} {names}"))
        stack.enter_context(_disposed(engine))
        feed = publish(table)
        gate = isinstance(feed, TableFeed) and isinstance(
            feed.ordering(engine.dialect.name), postgresql.Gated
        )
        yield names, WatchedFeed(table, feed.bind(engine), steady=not gate)


@contextmanager
def _writing(
    engine: Engine, crews: Sequence[Crew], mix: Mix, seed: str, verdict: Verdict
) -> Iterator[None]:
    """Let the crews write, and freeze them now and then."""
    pids = [crew.pid for crew in crews]
    local = engine.dialect.name == "postgresql"
    freezer = Freezer(lambda: [*pids, *(backends(engine) if local else ())], f"{seed} freezer")
    report = Report()
    url = engine.url.render_as_string(hide_password=False)
    try:
        for index, crew in enumerate(crews):
            crew.begin(Assignment(url, seed, index, len(crews), mix))
        freezer.start()
        yield
    finally:
        freezer.end()
        for crew in crews:
            report.add(crew.end())
        leftovers.clear(engine)
    verdict.frozen = freezer.frozen
    verdict.hear_writers(report)


def _wait(seconds: float, readers: Sequence[Reader]) -> None:
    """Wait, but no longer than nothing is wrong with some readers."""
    ending = time.monotonic() + seconds
    while time.monotonic() < ending and not any(reader.is_wrong for reader in readers):
        time.sleep(0.02)


def _judge(engine: Engine, readers: Sequence[Reader], verdict: Verdict) -> None:
    """Let the readers come to the end beside an open writer of another table, and judge them."""
    with engine.connect() as connection:
        truths = {table: schema.truth(connection, table) for table in schema.FEEDS}
        if engine.dialect.name != "sqlite":
            connection.execute(insert(schema.elsewhere).values(n=1))
        for reader in readers:
            reader.end(truths[reader.feed.table])
        for reader in readers:
            reader.join(JOINING)
    verdict.events = sum(sum(truth.values()) for truth in truths.values())
    for reader in readers:
        verdict.hear_reader(reader, truths[reader.feed.table])
    for feed in dict.fromkeys(reader.feed for reader in readers):
        verdict.hear_feed(feed)
