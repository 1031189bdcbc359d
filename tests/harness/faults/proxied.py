"""Read from a real server through a proxy that breaks connections, which bear several requests."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Self

import httpx
from sqlalchemy import create_engine
from starlette.applications import Starlette

from harness.faults.account import Account, until_done
from harness.faults.findings import Findings, naming
from harness.faults.plan import Fault, draw
from harness.faults.proxy import Proxy, proxying
from harness.shop import metadata, orders, place
from harness.web import serving
from zeroeventhub import Client, TableFeed, feed_routes

__all__ = ["Proxied"]

EVENTS = 30
PARTITIONS = 2
PATIENCE = httpx.Timeout(5, read=0.3)
"""How long the client waits, in seconds: what hangs costs a trial as much."""


MEANINGLESS = {Fault.NONE, Fault.TRUNCATED}
"""Faults that are none here: a proxy of bytes knows nothing of answers."""


class Proxied:
    """Run trials, one for each seed.

    Args:
        account: the consumers' database.
        proxy: stands before the server.
        url: of the feed, through the proxy.
    """

    def __init__(self, account: Account, proxy: Proxy, url: str) -> None:
        self._account = account
        self._proxy = proxy
        self._url = url

    @classmethod
    @contextmanager
    def open(cls, account: Account, folder: Path) -> Iterator[Self]:
        """Serve a table's events."""
        engine = create_engine(f"sqlite:///{folder / 'publisher.db'}")
        metadata.create_all(engine)
        with engine.begin() as connection:
            place(connection, EVENTS, partitions=PARTITIONS)
        feed = TableFeed(orders, partition="part", partitions=PARTITIONS, data="data")
        application = Starlette(routes=feed_routes("/orders", feed, engine))
        with serving(application) as url, proxying(f"{url}/orders") as (proxy, through):
            yield cls(account, proxy, through)
        engine.dispose()

    def run(self, seed: int) -> Findings:
        """Run a trial."""
        name = f"proxied, seed {seed}"
        dice = random.Random(name)
        length = dice.choice((500, 2000))
        plans = [draw(dice, length, without=MEANINGLESS) for _ in range(dice.randrange(1, 10))]
        self._proxy.follow(plans)
        read = dice.choice((self._account.read_in_turn, self._account.read_beside))
        limit = dice.choice((2, 5, None))
        with naming(name), httpx.Client(timeout=PATIENCE, verify=False) as session:
            client = Client(self._url, session)
            met = until_done(partial(read, client, name, limit=limit))
        faults = Counter(str(plan.fault) for plan in self._proxy.happened)
        findings = Findings(faults + met + Counter(trials=1))
        truth = {part: range(part, EVENTS, PARTITIONS) for part in range(PARTITIONS)}
        findings.compare(name, truth, self._account.seen(name), self._proxy.happened)
        return findings
