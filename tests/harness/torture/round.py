"""One round: fresh tables, crews that write, readers that page beside them, and a verdict."""

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from sqlalchemy import Engine, create_engine, insert

from harness.torture import leftovers, schema
from harness.torture.crew import Assignment, Crew, Report
from harness.torture.engines import reading_engine
from harness.torture.freezer import Freezer, backends
from harness.torture.mix import Mix
from harness.torture.mutants import Spoil
from harness.torture.reader import Reader
from harness.torture.strategies import published
from harness.torture.verdict import Verdict
from harness.torture.watched import WatchedFeed
from harness.waiting import until

JOINING = 60
"""Seconds after which readers that do not come to an end are given up."""


SEEN = 100
"""How many events the first reader has seen before a round ends, on however slow a machine."""


def torture(
    url: str,
    ordering: str,
    crews: Sequence[Crew],
    *,
    seed: int,
    seconds: float,
    mix: Mix,
    spoil: Spoil | None = None,
) -> Verdict:
    """Torture an ordering in an empty database.

    Args:
        url: the database.
        ordering: its name.
        crews: processes to write with.
        seed: of all dice.
        seconds: how long the crews write.
        mix: the writers.
        spoil: makes the ordering wrong; the round ends as soon as that is seen.
    """
    verdict = Verdict()
    with ExitStack() as stack:
        engine = stack.enter_context(_disposed(create_engine(url)))
        _prepare(url, ordering, spoil, in_wal=seed % 2 == 0)
        readers = [
            Reader(name, feed, f"{seed} {name}")
            for names, feed in _feeds(url, ordering, seed, spoil, stack)
            for name in names
        ]
        *early, late = readers
        watched = readers if spoil else ()
        try:
            with _writing(engine, crews, mix, str(seed), verdict):
                for reader in early:
                    reader.start()
                _wait(seconds / 2, watched)
                late.start()
                _wait(seconds / 2, watched)
                first = readers[0]
                until(
                    lambda: first.tally.events > SEEN or not first.is_alive(),
                    f"the {first.name} sees {SEEN} events",
                )
            if spoil and any(reader.is_wrong for reader in readers):
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


def _prepare(url: str, ordering: str, spoil: Spoil | None, *, in_wal: bool) -> None:
    with _disposed(create_engine(url)) as engine:
        if spoil:
            spoil(engine)
        if engine.dialect.name == "sqlite" and in_wal:
            with engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        with engine.begin() as connection:
            schema.create(connection)
        with engine.begin() as connection:
            for table in schema.FEEDS:
                published(table, ordering).install(connection)


def _feeds(
    url: str, ordering: str, seed: int, spoil: Spoil | None, stack: ExitStack
) -> Iterator[tuple[list[str], WatchedFeed]]:
    """Yield feed objects, each with an ordering of its own, and the names of their readers."""
    for table, names in (
        (schema.events, ["first reader of a shared feed", "second reader of a shared feed"]),
        (schema.events, ["reader with a feed of its own"]),
        (schema.others, ["reader of the other feed"]),
        (schema.events, ["reader that started late"]),
    ):
        engine = stack.enter_context(
            _disposed(reading_engine(url, random.Random(f"{seed} {names}")))
        )
        if spoil:
            spoil(engine)
        feed = published(table, ordering).bind(engine)
        yield names, WatchedFeed(table, feed, steady=ordering != "gated")


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
    with suppress(AssertionError):
        until(lambda: any(reader.is_wrong for reader in readers), "a mistake is seen", seconds)


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
