"""Our consumers come through every scenario of a publisher that misbehaves."""

from itertools import product

import anyio
import httpx
import pytest
from harness.checked import verdict_on
from harness.stores import new_store
from sqlalchemy import NullPool, create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from zeroeventhub import AsyncClient, AsyncConsumer, Client, Consumer, CursorStore, errors
from zeroeventhub.conformance.misbehaving import all_scenarios, expand

EVERYTHING = pytest.mark.test_all
ERRORS = {
    "protocol": errors.ProtocolError,
    "moved": errors.NotFound,
    "trimmed": errors.Trimmed,
    "diverged": errors.Diverged,
    "gone": errors.Gone,
    "forbidden": errors.Forbidden | errors.Unauthorized,
    "refused": errors.ZeroEventHubError,
}
MOST_EVENTS = 50
TO_THE_END = {"follow": False, "attempts": 6}
SCENARIOS = [name for name, scenario in all_scenarios().items() if scenario.sizes is None]
FAMILIES = [name for name, scenario in all_scenarios().items() if scenario.sizes is not None]


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """The path of an SQLite database that has the cursors of all consumers."""
    path = tmp_path_factory.mktemp("kit") / "kit.db"
    engine = create_engine(f"sqlite:///{path}")
    new_store(engine)
    engine.dispose()
    return path


def consume(feed, partitions, path, apply):
    """Read a scenario to its end."""
    store = CursorStore(create_engine(f"sqlite:///{path}", poolclass=NullPool))
    name = feed.rpartition("/")[2]
    with httpx.Client(verify=False) as http:
        client = Client(feed, http, partitions=partitions)
        Consumer(client, store, name, **TO_THE_END).run(apply)


def consume_async(feed, partitions, path, apply):
    """Do the same in asynchronous code."""
    store = CursorStore(create_async_engine(f"sqlite+aiosqlite:///{path}", poolclass=NullPool))
    name = feed.rpartition("/")[2]

    async def apply_async(connection, page):
        apply(connection, page)

    async def run():
        async with httpx.AsyncClient(verify=False) as http:
            client = AsyncClient(feed, http, partitions=partitions)
            await AsyncConsumer(client, store, name, **TO_THE_END).run(apply_async)

    anyio.run(run)


def expect_right(url, name, consume, database):
    """Read a scenario, and expect exactly what a right consumer has applied."""
    scenario = expand(name)
    feed = f"{url}/{name}@{consume.__name__}"
    applied, error = [], None

    def apply(_, page):
        applied.extend((page.partition, event.raw.decode()) for event in page.events)
        assert len(applied) < MOST_EVENTS, "events come again and again"

    try:
        consume(feed, scenario.v1, database, apply)
    except errors.ZeroEventHubError as refusal:
        error = refusal
    lines = [f'{{"partition":{partition},"data":{data}}}' for partition, data in applied]
    lines += ['{"error":"it ended"}'] if error else []
    assert verdict_on(feed, lines) == {"passed": True, "reasons": []}
    if error is not None and scenario.may_fail:
        return
    assert (error is None) == (scenario.error is None), error
    assert error is None or isinstance(error, ERRORS[scenario.error])
    for partition, events in scenario.applied.items():
        assert [data for number, data in applied if number == partition] == list(events)


WHOLE_WAYS = {"good", "tail", "failed-once", "trimmed", "token-changed", "children", "v1-good"}
"""Scenarios that both consumers read in `make test`; they decide by the same code."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "consume"),
    [
        *product(SCENARIOS, [consume]),
        *(
            pytest.param(name, consume_async, marks=() if name in WHOLE_WAYS else EVERYTHING)
            for name in SCENARIOS
        ),
    ],
)
def test_our_consumers_come_through(scenarios_url, database, name, consume):
    """Whatever a publisher does, events are applied once, in order, or an error says why not."""
    expect_right(scenarios_url, name, consume, database)


@pytest.mark.slow
@pytest.mark.parametrize("rest", [False, pytest.param(True, marks=EVERYTHING)])
@pytest.mark.parametrize("family", FAMILIES)
def test_our_consumers_come_through_every_cut(scenarios_url, database, family, rest):
    """An answer that breaks off at any byte leads to each event being applied once."""
    for offset in range(all_scenarios()[family].sizes):
        if bool(offset % 17) == rest:
            expect_right(scenarios_url, f"{family}-{offset}", consume, database)
