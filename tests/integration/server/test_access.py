"""Who is let in: what hooks of the host's may say of a request."""

import threading
from contextlib import suppress

import anyio
import httpx
import pytest
from harness.readers import (
    GOOD,
    HEADERS,
    PATIENCE,
    READER,
    TOKEN,
    get,
    kind,
    mounted,
    raising,
    routes,
    served,
)
from harness.shop import orders
from harness.waiting import until
from harness.web import serving
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from zeroeventhub import Capacity, FeedAuthorization, Principal, TableFeed, everybody
from zeroeventhub.errors import (
    ConfigurationError,
    Forbidden,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)

PATHS = ["", "/events", "/cursor", "/splits", "/lag", "/cursor-of-count", "/segments"]
PATHS += ["/key-history", "/http-feed", "/server-sent-events"]


def test_hook_lets_in(shop):
    """A hook may be sync or async, a function or an object."""

    async def async_hook(request):
        await anyio.sleep(0.001)
        return READER

    class Caller:
        async def __call__(self, request):
            return READER

    hidden = lambda request: async_hook(request)  # noqa: E731, PLW0108 - it is no coroutine function
    for hook in (lambda request: READER, async_hook, Caller(), hidden, everybody):
        with served(shop, hook) as url:
            for path, parameters in GOOD.items():
                assert httpx.head(url + path, params=parameters).status_code == 200
            assert get(url).text.count('"data"') == 20


class NoReaders(dict):
    """A hook that Python takes for nothing, as an empty collection."""

    async def __call__(self, request):
        """Know nobody."""
        raise Forbidden("Nobody may read this feed.")


REFUSALS = {
    "unauthorized": (raising(Unauthorized("Who are you?")), 401, "unauthorized"),
    "no readers": (NoReaders(), 403, "forbidden"),
    "forbidden": (raising(Forbidden("Not you.")), 403, "forbidden"),
    "too many": (raising(TooManyRequests("Later.", retry_after=7)), 429, "too-many-requests"),
    "unavailable": (raising(Unavailable("The directory is away.")), 503, "unavailable"),
    "a name": (lambda request: "reader", 500, "failed"),
    "true": (lambda request: True, 500, "failed"),
    "a class": (lambda request: Principal, 500, "failed"),
    "no principal": (lambda request: Principal(name="a\nb"), 500, "failed"),
    "nothing": (lambda request: anyio.sleep(0.001), 500, "failed"),
    "an error": (raising(KeyError(TOKEN)), 500, "failed"),
    "an end": (raising(StopIteration()), 500, "failed"),
}


@pytest.mark.parametrize(("hook", "status", "problem"), REFUSALS.values(), ids=REFUSALS)
def test_hook_that_returns_no_principal_keeps_every_reader_out(shop, hook, status, problem):
    """Whatever a hook does but return a Principal keeps all readers out, on every route."""
    with served(shop, hook) as url:
        for path in PATHS:
            answer = httpx.get(url + path, params=GOOD.get(path), headers=HEADERS)
            assert (answer.status_code, kind(answer)) == (status, problem)
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["vary"] == "Authorization"
            assert "canary" not in answer.text
            challenge = answer.headers.get("www-authenticate")
            assert challenge == ("Bearer" if status == 401 else None)
        assert answer.headers.get("retry-after") == {429: "7", 503: "1"}.get(status)
        assert httpx.put(f"{url}/progress").status_code == status
        head = httpx.head(url)
        assert (head.status_code, head.content) == (status, b"")


def test_hook_that_is_wrong_is_in_the_log(shop, caplog):
    """The log says what a hook returned, and what it has to do."""
    with served(shop, lambda request: True) as url:
        httpx.get(url)
    assert "returned bool" in caplog.text
    assert "return a Principal" in caplog.text


def test_exceptions_of_the_host_are_for_its_own_handlers(shop):
    """What the host's hook raises as the host does elsewhere is answered as elsewhere."""

    async def handler(request, error):
        return JSONResponse({"own": error.detail}, error.status_code)

    hook = raising(HTTPException(418, "the host's own"))
    application = Starlette(routes=routes(shop, hook), exception_handlers={418: handler})
    with serving(application) as url:
        answer = httpx.get(f"{url}/orders")
        assert (answer.status_code, answer.json()) == (418, {"own": "the host's own"})


@pytest.mark.parametrize("kind_of_hook", ["async", "in a thread", "not cancelled"])
def test_hook_that_takes_too_long_is_given_up(shop, kind_of_hook):
    """A hook that does not answer in time lets nobody in, whatever it says later."""
    given_up = threading.Event()

    async def slow(request):
        await anyio.sleep(PATIENCE)
        return READER

    def slow_in_a_thread(request):
        given_up.wait(PATIENCE)
        return READER

    async def not_cancelled(request):
        with suppress(anyio.get_cancelled_exc_class()):
            await anyio.sleep(PATIENCE)
        return READER

    hooks = {"async": slow, "in a thread": slow_in_a_thread, "not cancelled": not_cancelled}
    with served(shop, hooks[kind_of_hook], capacity=Capacity(patience=0.1)) as url:
        try:
            answer = get(url)
        finally:
            given_up.set()
    assert (answer.status_code, kind(answer)) == (503, "unavailable")


def test_readers_of_a_part_are_a_reason_for_a_secret(shop, caplog):
    """Where a reader may see only a part of a feed without a secret, the log warns of it once."""
    for secret, warnings in ((None, 1), ("s" * 32, 0)):
        caplog.clear()
        feed = TableFeed(orders, data="data", partition="part", partitions=2, cursor_secret=secret)
        hook = lambda request: Principal(name="ada", partitions={0})  # noqa: E731 - short
        with mounted(feed, shop, authorize=hook) as url:
            for _ in range(2):
                assert len(httpx.get(url).json()["partitions"]) == 1
        assert len([one for one in caplog.records if "cursor_secret" in one.msg]) == warnings


def test_hook_that_blocks_does_not_block_the_application(shop, pool):
    """Hooks that are not async wait in threads of the feed's own, four of them."""
    running, proceed = [], threading.Event()

    def hook(request):
        running.append(request)
        proceed.wait(PATIENCE)
        return READER

    own = routes(shop, everybody, path="/own", name="own")
    application = Starlette(routes=[*routes(shop, hook, capacity=Capacity(patience=60)), *own])
    with serving(application) as url:
        try:
            found = [pool.submit(httpx.get, f"{url}/orders", timeout=PATIENCE) for _ in range(10)]
            until(lambda: len(running) == 4, "four hooks run")
            assert httpx.get(f"{url}/own", timeout=PATIENCE).status_code == 200
            assert len(running) == 4
        finally:
            proceed.set()
        assert [one.result().status_code for one in found] == [200] * 10


def test_what_is_no_hook_is_refused(shop):
    """A hook that cannot be called is refused when the feed is mounted."""
    for wrong in ("everybody", True, READER, {}):
        with pytest.raises(ConfigurationError, match="authorize"):
            routes(shop, wrong)
        with pytest.raises(ConfigurationError, match="authorize"):
            FeedAuthorization(Starlette(), wrong)
