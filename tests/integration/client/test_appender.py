"""Appenders against a real log: what is handed over arrives once, and in its order."""

import asyncio
import logging
import math
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import aclosing, nullcontext

import anyio
import httpx
import pytest
from harness.appended import batch, ids, made
from harness.faults.killed_appender import killed_while_appending
from harness.faults.proxy import Fault, Plan, proxying
from harness.killed import until_killed
from harness.readers import client_of
from harness.waiting import until
from harness.web import serving
from harness.written import writable
from starlette.applications import Starlette

from zeroeventhub import Appender, AsyncAppender, AsyncClient, Client, NewEvent, feed_routes
from zeroeventhub.errors import (
    ConfigurationError,
    IdReused,
    NotAppended,
    OutOfSequence,
    ProtocolError,
)

FIFTY = batch(50)


def random_breaks(count):
    """Plans by which connections break at any byte."""
    dice, faults = random.Random(5), [Fault.CUT, Fault.RESET, Fault.REFUSE]
    return [
        [Plan(dice.choice(faults), dice.randrange(3_000)) for _ in range(5)] for _ in range(count)
    ]


@pytest.fixture
def written(sqlite):
    """A log, its URL, and the requests to it."""
    with writable(sqlite) as found:
        yield found


def sync_append(url, events, futures=None, **options):
    """Append events by an Appender; return its futures, also in a list that is given."""
    futures = [] if futures is None else futures
    with client_of(url) as client, Appender(client, **options) as appender:
        futures += map(appender.append, events)
    return futures


def async_append(url, events, futures=None, **options):
    """Append events by an AsyncAppender; return its futures, also in a list that is given."""
    futures = [] if futures is None else futures

    async def append():
        async with (
            httpx.AsyncClient() as http,
            AsyncAppender(AsyncClient(url, http), **options) as appender,
        ):
            for event in events:
                futures.append(await appender.append(event))

    anyio.run(append)
    return futures


@pytest.fixture(params=[sync_append, async_append], ids=["sync", "async"])
def append(request):
    """A function that appends events in the background, by each appender in turn."""
    return request.param


def test_events_are_appended_in_batches_and_in_their_order(append, written, sqlite):
    """All events are in the log once and in their order, after fewer requests than events."""
    log, url, requests = written
    events = batch(2_500)
    futures = append(url, events, buffer=1_200)
    assert ids(sqlite, log) == [event.id for event in events]
    assert [future.result().id for future in futures] == [event.id for event in events]
    assert {future.result().partition for future in futures} <= set(range(8))
    assert requests.count < 100


def test_event_waits_for_others_but_not_for_long(written):
    """An event is sent once it has lingered, or at once for a flush or the end of the block."""
    _, url, requests = written
    with client_of(url) as client:
        with Appender(client, linger=0.01) as appender:
            assert [appender.append(event) for event in FIFTY][-1].result(20).id == "e49"
        before, began = requests.count, time.monotonic()
        with Appender(client, linger=100) as appender:
            appender.append(NewEvent("paid", {}))
            appender.flush()
            assert requests.count == before + 1
            appender.append(NewEvent("paid", {}))
        assert requests.count == before + 2
        assert time.monotonic() - began < 50


def test_batch_ends_at_its_bytes(written):
    """Large events are sent in batches of up to a mebibyte."""
    _, url, requests = written
    events = [NewEvent("large", "x" * size) for size in (*[400_000] * 4, 1_000_000)]
    sync_append(url, events, linger=100)
    assert requests.count == 3


def test_transient_errors_are_waited_out(append, written, sqlite):
    """Batches that a log cannot take for now are sent again, until it takes them."""
    log, url, requests = written
    requests.refused = 3
    append(url, FIFTY, batch=10)
    assert ids(sqlite, log) == [event.id for event in FIFTY]
    assert requests.count >= 8


BREAKS = [Plan(Fault.CUT, 300), Plan(Fault.RESET, 1_500), Plan(Fault.REFUSE), Plan(Fault.CUT, 900)]


@pytest.mark.parametrize(
    "plans", [BREAKS, *(pytest.param(one, marks=pytest.mark.test_all) for one in random_breaks(20))]
)
def test_connections_that_break_repeat_nothing(append, written, sqlite, plans):
    """Wherever answers are cut, each event is in the log once and in its order."""
    log, url, _ = written
    with proxying(url) as (proxy, through):
        proxy.follow(plans)
        append(through, FIFTY, batch=10, producer="till")
        assert len(proxy.happened) > len(plans)
    assert ids(sqlite, log) == [event.id for event in FIFTY]


def test_log_that_restarts_gets_every_event(sqlite, caplog):
    """Events that are handed over while no server listens are appended when one does."""
    log = made(sqlite, append=True)
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]

        def serve():
            routes = feed_routes("/orders", log.feed(), sqlite)
            return serving(Starlette(routes=routes), port)

        client = Client(f"http://127.0.0.1:{port}/orders")
        with Appender(client, producer="till") as appender:
            for first in (0, 20):
                caplog.clear()
                futures = [appender.append(event) for event in batch(20, first=first)]
                until(lambda: caplog.messages, "no server listens")
                assert ". Trying again in " in caplog.messages[0]
                with serve():
                    assert futures[-1].result(20).id == f"e{first + 19}"
    assert isinstance(caplog.records[0].args[0], str)  # and no error, with its frames
    assert ids(sqlite, log) == [event.id for event in batch(40)]


def test_refused_event_fails_alone(append, written, sqlite):
    """The future of an event that the log refuses has the error, and all others are appended."""
    log, url, _ = written
    with client_of(url) as client:
        client.append([NewEvent("other", {}, id="e7"), NewEvent("other", {}, id="e8")])
    futures = []
    with pytest.raises(NotAppended, match=r"2 of the events\. The error of 'e7': .*'e7'") as raised:
        append(url, FIFTY, futures)
    kinds = {id_: type(error) for id_, error in raised.value.errors.items()}
    assert kinds == {"e7": IdReused, "e8": IdReused}
    refused = [number for number, future in enumerate(futures) if future.exception() is not None]
    assert refused == [7, 8]
    left = [event.id for event in FIFTY if event.id not in {"e7", "e8"}]
    assert ids(sqlite, log) == ["e7", "e8", *left]


def test_each_refusal_is_raised_once_unless_somebody_has_asked(written):
    """A flush raises the refusals since the last flush, but not those of awaited futures."""
    _, url, _ = written
    with client_of(url) as client:
        client.append([NewEvent("other", {}, id=f"e{number}") for number in range(3)])
        with Appender(client) as appender:
            first, *_ = [appender.append(event) for event in batch(3)]
            assert isinstance(first.exception(20), IdReused)
            with pytest.raises(NotAppended) as raised:
                appender.flush()
            assert [*raised.value.errors] == ["e1", "e2"]
            appender.flush()


async def _refusals_of_tasks(url):
    async with httpx.AsyncClient() as http, AsyncAppender(AsyncClient(url, http)) as appender:
        with pytest.raises(IdReused):
            await (await appender.append(batch(1)[0]))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(await appender.append(batch(1, first=1)[0]), 0)
        with pytest.raises(NotAppended) as refused:
            await appender.flush()
        assert [*refused.value.errors] == ["e1"]


def test_awaited_refusal_is_not_raised_again(written):
    """Who awaits a future has its error, unless that was cancelled; a flush does not repeat it."""
    _, url, _ = written
    with client_of(url) as client:
        client.append([NewEvent("other", {}, id="e0"), NewEvent("other", {}, id="e1")])
    anyio.run(_refusals_of_tasks, url)


def test_refusal_that_came_too_late_for_its_reader_is_raised(written):
    """Who has not waited until the log answered has not read the refusal: a flush raises it."""
    _, url, _ = written
    with client_of(url) as client:
        client.append([NewEvent("other", {}, id="e0"), NewEvent("other", {}, id="e1")])
        with Appender(client, linger=100) as appender:
            first, second = [appender.append(event) for event in batch(2)]
            for read in (first.result, second.exception):
                with pytest.raises(TimeoutError):
                    read(0)
            with pytest.raises(NotAppended) as raised:
                appender.flush()
            assert [*raised.value.errors] == ["e0", "e1"]


def test_refusals_that_nobody_looks_at_are_bounded(written):
    """An appender that has seen as many refusals as its buffer holds takes no more events."""
    _, url, _ = written
    with client_of(url) as client:
        client.append([NewEvent("other", {}, id=f"e{number}") for number in range(20)])
        taken = 0
        with pytest.raises(NotAppended), Appender(client, buffer=2) as appender:
            for event in batch(20):
                appender.append(event)
                taken += 1
    assert taken < 20


def test_append_waits_while_the_buffer_is_full(written, sqlite):
    """An appender holds no more events than its buffer has room for."""
    log, url, requests = written
    requests.refused = 10**6
    handed_over = []
    with client_of(url) as client, Appender(client, buffer=5, batch=2) as appender:

        def hand_over():
            for event in FIFTY:
                appender.append(event)
                handed_over.append(event)

        thread = threading.Thread(target=hand_over)
        thread.start()
        until(lambda: len(handed_over) == 5, "the buffer is full")
        until(lambda: requests.count > 1, "the log refuses")
        assert len(handed_over) == 5
        requests.refused = 0
        thread.join()
    assert ids(sqlite, log) == [event.id for event in FIFTY]


def test_threads_share_an_appender(written, sqlite):
    """Events of several threads are all appended, and those of each thread in its order."""
    log, url, _ = written
    with client_of(url) as client, Appender(client, buffer=20) as appender:

        def hand_over(first):
            for event in batch(100, first=first):
                appender.append(event)

        threads = [threading.Thread(target=hand_over, args=[100 * n]) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    numbers = [int(one[1:]) for one in ids(sqlite, log)]
    for first in range(0, 400, 100):
        assert [n for n in numbers if first <= n < first + 100] == [*range(first, first + 100)]


def test_producer_goes_on_where_it_was(append, written):
    """A second run of a producer counts on, and the log has the events of both."""
    _, url, _ = written
    append(url, FIFTY, producer="till", batch=10, linger=100)
    append(url, batch(70), producer="till", batch=10, linger=100)
    with client_of(url) as client:
        assert client.producer_sequence("till") == 12


def test_answer_that_cannot_be_read_fails_its_batch_alone(append, written, sqlite):
    """Batches after an answer in another form are taken, whatever the log did with that batch."""
    log, url, requests = written
    requests.garbled, futures = 1, []
    with pytest.raises(NotAppended) as raised:
        append(url, FIFTY, futures, producer="till", batch=10, linger=100)
    assert {type(error) for error in raised.value.errors.values()} == {ProtocolError}
    assert [*raised.value.errors] == [event.id for event in FIFTY[:10]]
    assert ids(sqlite, log) == [event.id for event in FIFTY]


def test_clock_that_jumps_repeats_no_event(append, written, sqlite, monkeypatch):
    """The log recognizes events and counts batches whatever the clock of its process says."""
    log, url, _ = written
    now, dice = time.time, random.Random(0)
    monkeypatch.setattr("time.time", lambda: now() + dice.randint(-100_000, 100_000))
    for _ in range(2):
        append(url, FIFTY, producer="till", batch=10, linger=100)
    assert ids(sqlite, log) == [event.id for event in FIFTY]
    with client_of(url) as client:
        assert client.producer_sequence("till") == 10


def test_two_processes_of_one_producer_are_noticed(written):
    """The batch of a producer that another process has overtaken is refused."""
    _, url, _ = written
    with (
        client_of(url) as client,
        pytest.raises(NotAppended) as refused,
        Appender(client, producer="till") as appender,
    ):
        appender.append(FIFTY[0]).result(20)
        sync_append(url, FIFTY[1:3], producer="till", batch=1)
        appender.append(FIFTY[4])
    (error,) = refused.value.errors.values()
    assert (type(error), error.sequence) == (OutOfSequence, 3)


def test_process_that_was_overtaken_appends_nothing_new(written, sqlite):
    """A batch is refused as a whole if another process has appended a part of it under its name."""
    log, url, _ = written
    with client_of(url) as client, Appender(client, producer="till", linger=100) as appender:
        appender.append(FIFTY[0])
        appender.flush()
        sync_append(url, FIFTY[1:2], producer="till")
        futures = [appender.append(event) for event in FIFTY[1:3]]
        with pytest.raises(NotAppended):
            appender.flush()
        assert {type(future.exception()) for future in futures} == {OutOfSequence}
    assert ids(sqlite, log) == ["e0", "e1"]


def test_block_that_ends_its_program_waits_for_the_log(append, written, sqlite):
    """Events before sys.exit() are in the log before the program ends."""
    log, url, _ = written

    def events():
        yield FIFTY[0]
        sys.exit()

    with pytest.raises(SystemExit):
        append(url, events())
    assert ids(sqlite, log) == ["e0"]


def test_block_of_a_generator_that_is_closed_waits_for_the_log(written, sqlite):
    """Events before a `break` are in the log when the loop has ended, as are those of any block."""
    log, url, _ = written

    def appended(client):
        with Appender(client, linger=100) as appender:
            for event in FIFTY:
                appender.append(event)
                yield event

    async def appended_async(http):
        async with AsyncAppender(AsyncClient(url, http), linger=100) as appender:
            for event in FIFTY[1:]:
                await appender.append(event)
                yield event

    async def append_one():
        async with httpx.AsyncClient() as http, aclosing(appended_async(http)) as events:
            await anext(events)

    with client_of(url) as client:
        for _ in appended(client):
            break
        assert ids(sqlite, log) == ["e0"]
    asyncio.run(append_one())
    assert ids(sqlite, log) == ["e0", "e1"]


LEFT_OPEN = """
import sys
from zeroeventhub import Appender, Client, NewEvent

def appended():
    with Appender(Client(sys.argv[1]), linger=100) as appender:
        yield appender.append(NewEvent("paid", {}))

def main():
    events = appended()
    next(events)
    raise KeyError("of the program")

main()
"""


def test_generator_that_was_left_open_lets_its_program_end(written):
    """A program ends with its own error, though a generator of it is still in the block."""
    _, url, _ = written
    program = [sys.executable, "-c", LEFT_OPEN, url]
    ended = subprocess.run(program, capture_output=True, timeout=60, check=False)
    assert (ended.returncode, b"of the program" in ended.stderr) == (1, True)


FORKED = """
import os, sys
from zeroeventhub import Appender, Client, NewEvent
from zeroeventhub.errors import ConfigurationError

client = Client(sys.argv[1])
with Appender(client, linger=100) as appender:
    appender.append(NewEvent("paid", {}, id="of the parent"))
    if (child := os.fork()) == 0:
        for use in (lambda: appender.append(NewEvent("paid", {})), appender.flush):
            try:
                use()
            except ConfigurationError:
                continue
            sys.exit("The child could use it.")
        sys.exit()
    if os.waitpid(child, 0)[1]:
        sys.exit("The child failed.")
"""


def test_forked_process_takes_no_events(written, sqlite):
    """A process that is forked within a block is refused its use, and ends without waiting."""
    log, url, _ = written
    subprocess.run([sys.executable, "-c", FORKED, url], check=True, timeout=60)
    assert ids(sqlite, log) == ["of the parent"]


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_block_that_fails_still_appends(written, sqlite, error):
    """The error of a block is raised; events before it are appended as well."""
    log, url, _ = written
    with client_of(url) as client:
        with pytest.raises(error), Appender(client) as appender:
            appender.append(FIFTY[0])
            raise error
        until(lambda: ids(sqlite, log) == ["e0"], "the event is there")


@pytest.mark.parametrize("seconds", [0, 100], ids=["at its end", "within"])
def test_cancelled_block_ends_at_once(written, seconds):
    """A task that is cancelled does not wait for a log that does not answer."""
    _, url, requests = written
    requests.refused = 10**6

    async def run():
        async with httpx.AsyncClient() as http:
            with anyio.move_on_after(0.2) as scope:
                async with AsyncAppender(AsyncClient(url, http)) as appender:
                    futures.append(await appender.append(FIFTY[0]))
                    await asyncio.sleep(seconds)
            assert scope.cancelled_caught

    futures = []
    anyio.run(run)
    assert futures[0].cancelled()


def test_cancelled_block_ends_the_flushes_of_other_tasks(written):
    """Who waits for a flush learns that the block was cancelled before the log answered."""
    _, url, requests = written
    requests.refused = 10**6

    async def hold(appender):
        async with appender:
            await appender.append(FIFTY[0])
            await asyncio.sleep(100)

    async def run():
        async with httpx.AsyncClient() as http:
            appender = AsyncAppender(AsyncClient(url, http))
            block = asyncio.create_task(hold(appender))
            await asyncio.sleep(0.2)
            flush = asyncio.create_task(appender.flush())
            await asyncio.sleep(0)
            block.cancel()
            with pytest.raises(NotAppended, match="cancelled") as raised:
                await asyncio.wait_for(flush, 20)
            assert [*raised.value.errors] == ["e0"]

    anyio.run(run)


def test_what_an_appender_does_not_take_is_said_at_once(written):
    """What no appender can append, and numbers and clients that it cannot use, are refused."""
    _, url, _ = written
    with client_of(url) as client:
        numbers = [("batch", 0), ("batch", 1e3), ("buffer", 0), ("buffer", 9.5)]
        for name, number in [*numbers, ("linger", -1), ("linger", math.inf)]:
            with pytest.raises(ConfigurationError, match="one event or more"):
                Appender(client, **{name: number})
        for kind, other in ((Appender, url), (AsyncAppender, client)):
            with pytest.raises(ConfigurationError, match=", not by "):
                kind(other)
        appender = Appender(client)
        with pytest.raises(ConfigurationError, match="within its `with` block"):
            appender.append(FIFTY[0])
        with appender, pytest.raises(ConfigurationError, match="expects a version"):
            appender.append(NewEvent("paid", {}, key="a", expected_version=0))
        with Appender(client) as appender, pytest.raises(ConfigurationError, match="not dict"):
            appender.append({"type": "paid"})


def test_appender_is_in_one_block_at_a_time(written, sqlite):
    """A second block of the same appender is refused, and no event of the first is lost."""
    log, url, _ = written

    async def run():
        async with httpx.AsyncClient() as http, AsyncAppender(AsyncClient(url, http)) as appender:
            await appender.append(FIFTY[1])
            with pytest.raises(ConfigurationError, match="another appender"):
                await appender.__aenter__()

    with client_of(url) as client, Appender(client, batch=5) as appender:
        appender.append(FIFTY[0])
        with pytest.raises(ConfigurationError, match="another appender"), appender:
            pass
        anyio.run(run)
    assert sorted(ids(sqlite, log)) == ["e0", "e1"]


def test_callback_of_a_future_may_append_but_not_wait(written, sqlite):
    """A callback runs in the thread that makes room, and so neither waits for room nor flushes."""
    log, url, _ = written
    refused = []

    def follow(future):
        for kind in ("billed", "booked"):
            appender.append(NewEvent(kind, {}, id=f"{kind}-{future.result().id}"))
        try:
            appender.flush()
        except ConfigurationError as error:
            refused.append(str(error))

    with client_of(url) as client, Appender(client, buffer=2) as appender:
        for event in FIFTY[:6]:
            appender.append(event).add_done_callback(follow)
        until(lambda: len(refused) == 6, "all callbacks have run")
    assert len(ids(sqlite, log)) == 18
    assert "flush it elsewhere" in refused[0]


class Sink(logging.Handler):
    """A handler that appends each record as an event."""

    def __init__(self, appender):
        super().__init__()
        self._appender = appender
        self.count = 0

    def emit(self, record):
        self.count += 1
        self._appender.append(NewEvent("logged", {"text": record.getMessage()}))


def test_appender_takes_what_it_logs_itself(written, sqlite):
    """An appender that is the sink of the log does not wait for itself in an outage."""
    log, url, _ = written
    logger = logging.getLogger("zeroeventhub.client")
    with proxying(url) as (proxy, through), client_of(through) as client:
        proxy.follow([Plan(Fault.REFUSE, 0)] * 3)
        with Appender(client, buffer=1) as appender:
            sink = Sink(appender)
            logger.addHandler(sink)
            try:
                for event in FIFTY[:3]:
                    appender.append(event)
                appender.flush()
            finally:
                logger.removeHandler(sink)
    assert sink.count > 0
    assert len(ids(sqlite, log)) == 3 + sink.count


def _append_and_die(url, at):
    with Appender(Client(url), producer="till", batch=7) as appender:
        for number, event in enumerate(FIFTY):
            future = appender.append(event)
            if number == at:
                future.add_done_callback(lambda _: os.kill(os.getpid(), signal.SIGKILL))


@pytest.mark.slow
def test_killed_appender_that_starts_again_appends_each_event_once(written, sqlite):
    """A process that is killed while batches are on their way loses nothing if it starts anew."""
    log, url, _ = written
    assert until_killed(_append_and_die, url, 20)
    assert not until_killed(_append_and_die, url, None)
    assert ids(sqlite, log) == [event.id for event in FIFTY]


@pytest.mark.test_all
@pytest.mark.parametrize("database", ["sqlite", "postgresql", "mariadb"])
def test_killed_appenders_and_publishers_lose_and_repeat_nothing(request, database):
    """Appenders and publishers are killed; the log has each event once, in order."""
    url = request.getfixturevalue(f"{database}_url")
    findings = killed_while_appending(lambda: nullcontext(url), [1])
    assert findings.complaints == []
    assert findings.counts["kills"] > 3
