"""Signals end a consumer that is the program, and are left to its host elsewhere."""

import os
import signal

import pytest
from harness.deliveries import opened, write_page
from harness.waiting import until

from zeroeventhub.errors import ConfigurationError

SIGNALS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


def once(number):
    """Make a function that applies pages and at the first one sends this process a signal.

    The main thread sees it a little later, and another page may be applied by then.
    """
    sent = []

    def apply(connection, page):
        write_page(connection, page)
        if not sent:
            sent.append(number)
            os.kill(os.getpid(), number)

    return apply


@pytest.fixture(autouse=True)
def _usual_handlers():
    """Begin with the handlers of a new process: Spark, for one, leaves its own in this one."""
    usual = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def handled():
    """The signals that a handler of the host has seen."""
    seen = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: seen.append(number))
    return seen


@SIGNALS
@pytest.mark.parametrize("has_host", [False, True])
def test_signal_ends_a_run_after_its_page(request, either_shop, number, has_host):
    """The first signal stops a run; its host's handler sees it as well, and stays in place."""
    shop, handled = either_shop, request.getfixturevalue("handled") if has_host else []
    shop.feed.place(6)
    before = signal.getsignal(number)
    shop.run(once(number), follow=True, limit=1, handle_signals=True)
    assert (handled, signal.getsignal(number)) == ([number] * has_host, before)
    assert 1 <= shop.count() < 6
    assert (shop.landed(), shop.leases()) == ([*range(shop.count())], 0)


def test_signals_are_left_to_the_host(shop, handled):
    """A run that was not asked to handle signals goes on, and the host's handler sees each."""
    shop.feed.place(3)
    shop.run(once(signal.SIGTERM), limit=1)
    assert (handled, shop.landed()) == ([signal.SIGTERM], [0, 1, 2])


def test_handlers_are_as_before_where_no_signal_came(shop):
    """A run that ends at the head leaves the handlers of its host in place."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    shop.feed.place(1)
    shop.run(write_page, handle_signals=True)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_one_signal_ends_runs_that_overlap(sqlite_url, tmp_path, handled):
    """Two runs in one event loop are both stopped, whichever began or ends first."""
    import asyncio

    import httpx

    from zeroeventhub import AsyncClient

    other = f"sqlite:///{tmp_path / 'other.db'}"
    with opened(sqlite_url, is_async=True) as one, opened(other, is_async=True) as two:

        async def run():
            async with httpx.AsyncClient() as http:
                runs = [
                    shop.consumer(AsyncClient(shop.url, http), follow=True).run(
                        write_page, handle_signals=True
                    )
                    for shop in (one, two)
                ]
                ended = asyncio.gather(*runs)
                await asyncio.sleep(0)
                one.feed.place(1)
                two.feed.place(1)
                await asyncio.to_thread(until, lambda: one.count() + two.count() == 2, "both read")
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.wait_for(ended, 20)

        asyncio.run(run())
    assert handled == [signal.SIGTERM]


def test_only_the_main_thread_handles_signals(shop):
    """A run in another thread says where signals can be handled, instead of ignoring them."""
    running = shop.start(handle_signals=True)
    until(lambda: running.error is not None, "the run has ended")
    assert isinstance(running.error, ConfigurationError)
    assert "main thread" in str(running.error)
