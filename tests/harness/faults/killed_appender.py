"""Appenders and the publishers of their log, which are killed at any moment: row R17."""

import logging
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from random import Random

from harness.appended import batch, made, rows
from harness.faults.account import Findings, naming
from harness.faults.killed_publisher import PARSERS, publishing
from harness.forks import forks
from harness.nginx_paths import reserved_port
from sqlalchemy import MetaData, create_engine

from zeroeventhub import Appender, Client, EventLog, TableFeed
from zeroeventhub.errors import NotAppended, OutOfSequence

EVENTS = 300
KEYS = 7  # of `batch`
KILLS = 20  # of appenders and publishers, at most in one round

OVERTAKEN = 3
"""The exit code of an appender after a request of one that was killed before."""


def killed_while_appending(
    database: Callable[[], AbstractContextManager[str]],
    seeds: Iterable[int],
    kills: float = float("inf"),
) -> Findings:
    """Append events to a new log for each seed, by processes that are killed over and over."""
    found = Findings()
    for seed in seeds:
        if found.counts["kills"] >= kills:
            break
        name = f"killed appender, seed {seed}"
        with database() as url, naming(name):
            found.counts["kills"] += _append_all(url, Random(name), found)
            engine = create_engine(url)
            log = EventLog(MetaData(), "orders", partitions=8)
            seen = defaultdict(list)
            for row in rows(engine, log):
                seen[int(row.key[1:])].append(row.data["n"])
            engine.dispose()
        found.compare(name, {key: range(key, EVENTS, KEYS) for key in range(KEYS)}, seen)
    return found


def _append_all(url: str, dice: Random, found: Findings) -> int:
    """Append until an appender has ended by itself; return how many processes were killed."""
    engine = create_engine(url)
    made(engine, append=True)
    engine.dispose()
    producer, kills, appender = dice.choice([None, "till"]), 0, None
    with reserved_port() as port:
        while True:
            last = kills >= KILLS
            strike = None if last else dice.randrange(5_000)
            with publishing(url, port, _log, parser=dice.choice(PARSERS), strike=strike):
                if appender is None:
                    arguments = (f"http://127.0.0.1:{port}/orders", producer, dice.randint(1, 9))
                    appender = forks().Process(target=_append, args=arguments, daemon=True)
                    appender.start()
                appender.join(60 if last else dice.uniform(0.1, 0.8))
                if appender.exitcode is None and dice.random() < 0.5:
                    kills += 1
                    appender.kill()
                    appender.join()
            if appender.exitcode == 0:
                return kills
            kills += 1
            if appender.exitcode is not None:
                found.counts["overtaken"] += appender.exitcode == OVERTAKEN
                assert appender.exitcode in {-9, OVERTAKEN}, appender.exitcode
                appender = None
            assert kills < 2 * KILLS, "an appender does not end beside a publisher that lives"


def _log() -> TableFeed:
    return EventLog(MetaData(), "orders", partitions=8, append=True).feed()


def _append(url: str, producer: str | None, events: int) -> None:
    """Append all events from the first on, as a process does that does not know where it was."""
    logging.disable()
    try:
        with Appender(Client(url), producer=producer, batch=events) as appender:
            for event in batch(EVENTS):
                appender.append(event)
    except NotAppended as refused:
        # The log may have got the last request of a killed appender only now.
        if not all(isinstance(error, OutOfSequence) for error in refused.errors.values()):
            raise
        sys.exit(OVERTAKEN)
