"""From one service's table into another's handler, each in a process of its own."""

from contextlib import ExitStack
from functools import partial

from benchmarks.acting import acting
from benchmarks.cpu import of_process
from benchmarks.measuring import Run, Way, figures, rounds
from benchmarks.result import Goal, Result, Row
from benchmarks.servers import (
    STREAM,
    fill_nats,
    fill_redis,
    nats_program,
    nats_server,
    redis_program,
    redis_server,
)
from benchmarks.stage import PAGE, Stage, peer_python
from benchmarks.suites.drain import copied

CEILING = "COPY of jsonb"
UNTOUCHED = "consumer, data untouched"
OBJECTS = "consumer, `event.data`"
TYPED = "consumer, structs of msgspec"
OVER_HTTPX = "consumer, `event.data`, over an httpx client"
PEER = "Python peer"
REDIS = "Redis Streams, consumer group"
NATS = "NATS JetStream, pull"
BY_HAND = "a loop by hand over the table, losing events"

OURS = {
    UNTOUCHED: "bytes",
    OBJECTS: "objects",
    TYPED: "structs",
    "consumer, dataclasses": "dataclasses",
    OVER_HTTPX: "objects",
    "client alone, no consumer": "fetched",
}

UNDECODED = (
    "the consumer's process takes more for a page than the publisher's: bytes, lines, commit"
)
DECODING = "half of what the consumer takes for a page goes into Python's objects of its events"

TEXT = """\
A publisher over PostgreSQL and a `Consumer.run` to the head, pages of 1,000, one partition. The
consumer keeps its cursor in SQLite, in a transaction a page, with the write-ahead log that
`zeroeventhub check` advises; its handler gets the page and touches nothing, or the data of each
event, or gets structs or dataclasses. Its client makes its own connections; in one row it is given
an httpx client. The peer has its own server and client. Of Redis, messages are read through
redis-py with hiredis, 1,000 at a time, decoded by msgspec and acknowledged; of NATS, through
nats-py, with one acknowledgement a batch. The loop by hand selects the rows above the last id
through psycopg, decodes them by `json`, and keeps the id in SQLite in the same way: it loses what
commits late, and needs access to the publisher's database. Redis and NATS have their events in
memory or a local file already, and “publisher” is their server. The peer's and NATS' runs have a
tenth of the events."""


def end_to_end(stage: Stage) -> Result:
    """Consume events in every way there is."""
    table = stage.table("events_jsonb", "jsonb", stage.events)
    ways: dict[str, Way] = {CEILING: partial(copied, stage, table)}
    for name, how in OURS.items():
        ways[name] = partial(consumed, stage, table, how, over_httpx=name == OVER_HTTPX)
    ways[PEER] = partial(consumed_by_peer, stage, table)
    ways[BY_HAND] = partial(consumed_by_hand, stage, table)
    missing = []
    with ExitStack() as stack:
        if redis_program():
            stage.tell("events into Redis")
            port, number = stack.enter_context(redis_server())
            fill_redis(port, stage.plain_url, table, stage.events)
            ways[REDIS] = partial(consumed_from, "redis_group", port, number, stage.events)
        else:
            missing.append(Row(REDIS, note="not installed"))
        if nats_program():
            stage.tell("events into NATS")
            port, number = stack.enter_context(nats_server())
            fill_nats(port, stage.plain_url, table, stage.events // 10)
            ways[NATS] = partial(consumed_from, "nats_pull", port, number, stage.events // 10)
        else:
            missing.append(Row(NATS, note="not installed"))
        runs = rounds(ways, stage.count, stage.tell)
    compared = {"of COPY": CEILING, "of the peer": PEER, "of Redis": REDIS, "of by hand": BY_HAND}
    of = {name: runs[way] for name, way in compared.items() if way in runs}
    rows = [Row(name, figures(found, of), ours=name in OURS) for name, found in runs.items()]
    return Result(
        "end_to_end",
        "End to end",
        TEXT,
        "of COPY",
        rows + missing,
        [
            Goal("end to end, data untouched", UNTOUCHED, "of COPY", 0.65, why=UNDECODED),
            Goal("end to end, objects in the handler", OBJECTS, "of COPY", 0.50, why=DECODING),
            Goal("end to end, objects in the handler", OBJECTS, "of by hand", 2.2, why=DECODING),
            Goal("end to end, objects in the handler", OBJECTS, "of Redis", 1.2, why=DECODING),
            Goal("end to end, objects in the handler", OBJECTS, "of the peer", 8.0, why=DECODING),
            Goal("end to end, typed", TYPED, "of COPY", 0.60, why=DECODING),
        ],
    )


def consumed(stage: Stage, table: str, how: str, *, over_httpx: bool) -> Run:
    """Consume a feed."""
    with stage.publisher(table) as (publisher, meters):
        url = f"http://127.0.0.1:{publisher.ready['port']}/{table}"
        task = {"url": url, "how": how, "limit": PAGE, "folder": str(stage.folder)}
        task["over_httpx"] = over_httpx
        with acting("consume", task) as consumer:
            run = consumer.run(meters)
    assert run.events == stage.events  # noqa: S101 - else it would be no measure
    return run


def consumed_by_peer(stage: Stage, table: str) -> Run:
    """Consume the Python peer's feed with its client."""
    with stage.peer(table) as (publisher, meters):
        url = f"http://127.0.0.1:{publisher.ready['port']}/feed/v1"
        task = {"url": url, "limit": PAGE, "events": stage.events // 10}
        with acting("peer_client", task, python=peer_python()) as consumer:
            return consumer.run(meters)


def consumed_by_hand(stage: Stage, table: str) -> Run:
    """Read the table itself."""
    task = {"database": stage.plain_url, "table": table, "limit": PAGE, "folder": str(stage.folder)}
    with acting("by_hand", task) as reader:
        return reader.run({"database": stage.backends})


def consumed_from(module: str, port: int, number: int, events: int) -> Run:
    """Consume a stream of another server."""
    task = {"port": port, "stream": STREAM, "limit": PAGE, "events": events}
    with acting(module, task) as consumer:
        run = consumer.run({"publisher": of_process(number)})
    assert run.events == events  # noqa: S101 - else it would be no measure
    return run
