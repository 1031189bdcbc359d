"""Publishers that are killed while they answer, directly and behind nginx."""

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import httpx
from sqlalchemy import create_engine, event, insert

from harness.faults.account import WIRE, Account, hurry
from harness.faults.findings import Findings, naming
from harness.faults.publishers import PARSERS, Publishers
from harness.nginx_paths import Deployment, deployed
from harness.shop import metadata, orders
from zeroeventhub import Client

__all__ = ["Killed"]

EVENTS = 450
LIMITS = (15, 50, 150)
"""Events of a page. With the fewest, nginx has room for all of it, and with the most for little."""

LENGTH = 1500
"""Characters of an event, about."""

LONGEST = 0.06
"""Seconds after which a publisher is killed at the latest, where nobody counts bytes."""

KILLS = 12
"""How often at most the publisher of one consumer is killed."""


class Killed:
    """Read a feed whose publisher is killed over and over.

    Args:
        deployment: what stands before the publisher.
        publishers: are killed.
        url: where their feed is read.
        account: of the consumers.
    """

    def __init__(
        self, deployment: Deployment, publishers: Publishers, url: str, account: Account
    ) -> None:
        self._deployment = deployment
        self._publishers = publishers
        self._url = url
        self._account = account

    @classmethod
    @contextmanager
    def open(cls, deployment: Deployment, folder: Path) -> Iterator[Self]:
        """Deploy publishers.

        Args:
            deployment: what stands before them.
            folder: for the databases.
        """
        path, account = folder / "publisher.db", Account(folder / "consumer.db")
        _write(path)
        with Publishers.open(path) as publishers, deployed(deployment, publishers.url) as url:
            yield cls(deployment, publishers, url, account)
        account.dispose()

    def run(self, seed: int) -> Findings:
        """Read the feed with a new consumer, whose publishers are killed as a seed says."""
        name = f"killed publisher, {self._deployment}, seed {seed}"
        dice = random.Random(name)
        limit = dice.choice(LIMITS)
        met: Counter[str] = Counter()
        with naming(name):
            while met.total() < KILLS:
                with self._dying(dice, limit):
                    if self._read(name, limit, met):
                        break
            else:
                with self._publishers.publishing():
                    assert self._read(name, limit, met), met
        findings = Findings(met + Counter(trials=1, kills=met.total()))
        findings.compare(name, {0: range(EVENTS)}, self._account.seen(name))
        return findings

    @contextmanager
    def _dying(self, dice: random.Random, limit: int) -> Iterator[None]:
        """Serve the feed until a byte of an answer, or in one of five cases until a moment."""
        by_the_clock = dice.random() < 0.2
        strike = None if by_the_clock else dice.randrange(2 * limit * LENGTH)
        seconds = dice.uniform(0, LONGEST) if by_the_clock else None
        parser = dice.choice(PARSERS)
        with (
            self._publishers.publishing(parser=parser, strike=strike) as process,
            _killed_after(seconds, process),
        ):
            yield

    def _read(self, name: str, limit: int, met: Counter[str]) -> bool:
        """Read on; return whether this came to the head, else count the error."""
        with httpx.Client(verify=False) as session:
            client = Client(self._url, session, compressed=self._deployment.compressed)
            try:
                self._account.read_in_turn(client, name, limit=limit)
            except WIRE as error:
                met[type(error).__name__] += 1
                return False
            return True


@contextmanager
def _killed_after(seconds: float | None, process: int) -> Iterator[None]:
    """Kill a process some time after this, unless it is to be let be."""
    if seconds is None:
        yield
        return
    timer = threading.Timer(seconds, os.kill, [process, signal.SIGKILL])
    timer.start()
    yield
    timer.join()


def _write(path: Path) -> None:
    """Write the events, whose texts gzip cannot make a tenth of."""
    dice = random.Random(0)
    engine = create_engine(f"sqlite:///{path}")
    event.listen(engine, "connect", hurry)
    metadata.create_all(engine)
    with engine.begin() as connection:
        texts = (dice.randbytes(LENGTH // 2).hex() for _ in range(EVENTS))
        rows = [{"data": {"n": n, "text": text}} for n, text in enumerate(texts)]
        connection.execute(insert(orders), rows)
    engine.dispose()
