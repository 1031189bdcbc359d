"""Read drawn histories through drawn faults, with a whole consumer."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import anyio
import httpx

from harness.faults.account import Account, until_done, until_done_async
from harness.faults.answer import Framing
from harness.faults.findings import Findings, naming
from harness.faults.history import History
from harness.faults.origin import Origin, serving_histories
from harness.faults.plan import draw
from zeroeventhub import AsyncClient, Client

__all__ = ["Trials"]

PATIENCE = httpx.Timeout(5, read=0.15)
"""How long the client waits, in seconds: what hangs costs a trial as much."""

HEAD = 160
"""Bytes of an answer that are not of its body, about."""


@dataclass
class Trials:
    """Run trials, one for each seed and framing.

    Attributes:
        account: the consumers' database.
        origin: the feed.
        url: where it is.
        session: what the sync consumer sends requests with.
    """

    account: Account
    origin: Origin
    url: str
    session: httpx.Client

    @classmethod
    @contextmanager
    def open(cls, account: Account) -> Iterator[Self]:
        """Serve a feed for trials."""
        origin = Origin([], Framing.LENGTH)
        with serving_histories(origin) as url, httpx.Client(timeout=PATIENCE) as session:
            yield cls(account, origin, url, session)

    def run(self, seed: int, framing: Framing) -> Findings:
        """Run a trial."""
        named = f"random_faults, seed {seed}, {framing}"
        dice = random.Random(named)
        self._set_the_scene(dice, framing)
        read = dice.choices((self._in_turn, self._beside, self._async), (8, 2, 1))[0]
        packed = dice.random() < 0.5
        with naming(named):
            met = read(named, packed=packed, limit=dice.choice((None, 1, 2, 5, 20)))
        truth = {number: history.numbers for number, history in enumerate(self.origin.histories)}
        faults = Counter(str(plan.fault) for _, plan in self.origin.happened)
        findings = Findings(faults + met + Counter(trials=1))
        findings.compare(named, truth, self.account.seen(named), self.origin.happened)
        return findings

    def _set_the_scene(self, dice: random.Random, framing: Framing) -> None:
        """Draw the histories, and what will happen to the connections."""
        partitions = dice.choice((1, 1, 2))
        self.origin.framing = framing
        self.origin.chunk = dice.choice((1, 10, 50, 400))
        self.origin.histories = [
            History.drawn(dice, first=1000 * number) for number in range(partitions)
        ]
        plans = {}
        for number, history in enumerate(self.origin.histories):
            length = HEAD + sum(len(event) + 30 for event in history.events)
            plans[number] = [
                draw(dice, dice.randrange(HEAD, length)) for _ in range(dice.randrange(1, 9))
            ]
        plans[None] = [draw(dice, 2 * HEAD) for _ in range(dice.randrange(3))]
        self.origin.follow(plans)

    def _in_turn(self, name: str, *, packed: bool, limit: int | None) -> Counter[str]:
        client = Client(self.url, self.session, compressed=packed)
        return until_done(lambda: self.account.read_in_turn(client, name, limit=limit))

    def _beside(self, name: str, *, packed: bool, limit: int | None) -> Counter[str]:
        client = Client(self.url, self.session, compressed=packed)
        return until_done(lambda: self.account.read_beside(client, name, limit=limit))

    def _async(self, name: str, *, packed: bool, limit: int | None) -> Counter[str]:
        async def read() -> Counter[str]:
            async with httpx.AsyncClient(timeout=PATIENCE, verify=False) as session:
                client = AsyncClient(self.url, session, compressed=packed)
                try:
                    return await until_done_async(
                        lambda: self.account.read_async(client, name, limit=limit)
                    )
                finally:
                    await self.account.async_engine.dispose()

        return anyio.run(read)
