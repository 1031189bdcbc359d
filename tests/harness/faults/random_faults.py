"""Read drawn histories through drawn faults, with whole consumers."""

import random
from collections import Counter
from collections.abc import Iterable
from functools import partial

import anyio
import httpx

from harness.faults.account import Account, until_done
from harness.faults.every_cut import Framing, History, Origin
from harness.faults.findings import Findings, naming
from harness.faults.proxy import draw
from zeroeventhub import AsyncClient, Client

__all__ = ["random_faults"]

PATIENCE = 5  # seconds that the client waits for bytes; here they come or do not

HEAD = 160  # bytes of an answer that are not of its body, about


def random_faults(account: Account, framing: Framing, seeds: Iterable[int]) -> Findings:
    """Read histories whose answers are framed in one way, in a trial for each seed."""
    found, origin = Findings(), Origin([], framing)
    with origin.serving() as url, httpx.Client(timeout=PATIENCE) as session:
        for seed in seeds:
            name = f"random_faults, seed {seed}, {framing}"
            dice = random.Random(name)
            _set_the_scene(origin, dice)
            way = dice.choices(("in turn", "beside", "async"), (8, 2, 1))[0]
            packed = dice.random() < 0.5
            options = {"limit": dice.choice((None, 1, 2, 5, 20))}
            client = Client(url, session, compressed=packed)
            read = {
                "in turn": partial(account.read_in_turn, client, name, **options),
                "beside": partial(account.read_beside, client, name, **options),
                "async": partial(
                    anyio.run, partial(_read_async, account, url, packed), name, options
                ),
            }[way]
            with naming(name):
                found.counts += until_done(read) + Counter(trials=1)
            found.counts.update(str(plan.fault) for _, plan in origin.happened)
            truth = {number: history.numbers for number, history in enumerate(origin.histories)}
            found.compare(name, truth, account.seen(name), origin.happened)
    return found


async def _read_async(
    account: Account, url: str, packed: bool, name: str, options: dict[str, int | None]
) -> None:
    async with httpx.AsyncClient(timeout=PATIENCE, verify=False) as session:
        await account.read_async(AsyncClient(url, session, compressed=packed), name, **options)


def _set_the_scene(origin: Origin, dice: random.Random) -> None:
    """Draw the histories, and what will happen to the connections."""
    partitions = dice.choice((1, 1, 2))
    origin.chunk = dice.choice((1, 10, 50, 400))
    origin.histories = [History.drawn(dice, first=1000 * number) for number in range(partitions)]
    plans = {}
    for number, history in enumerate(origin.histories):
        length = HEAD + sum(len(event) + 30 for event in history.events)
        plans[number] = [
            draw(dice, dice.randrange(HEAD, length)) for _ in range(dice.randrange(1, 9))
        ]
    plans[None] = [draw(dice, 2 * HEAD) for _ in range(dice.randrange(3))]
    origin.follow(plans)
