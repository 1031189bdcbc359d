"""Who is let in: hooks of the host's, bearer tokens, and applications that deny by default."""

import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import anyio
import httpx
import pytest
from fastapi import FastAPI
from fastapi import HTTPException as FastAPIException
from harness.readers import GOOD, HEADERS, READER, TOKEN, fill, kind, raising, routes, served
from harness.web import serving
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import Mount

from zeroeventhub import FeedAuthorization, Principal, bearer_tokens, everybody
from zeroeventhub.capacity import Capacity
from zeroeventhub.errors import (
    ConfigurationError,
    Forbidden,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from zeroeventhub.server import deny

PATHS = ["", "/events", "/cursor", "/splits", "/lag", "/cursor-of-count"]
PATHS += ["/http-feed", "/server-sent-events"]


@pytest.fixture
def shop(sqlite):
    """An engine of a database with ten orders."""
    return fill(sqlite)


async def async_hook(request):
    """Know a reader."""
    await anyio.sleep(0.001)
    return READER


class Caller:
    """Be a hook that is an object."""

    async def __call__(self, request):
        """Know a reader."""
        return READER


HOOKS = {
    "sync": lambda request: READER,
    "async": async_hook,
    "an object": Caller(),
    "sync that returns an awaitable": lambda request: async_hook(request),  # noqa: PLW0108
    "everybody": everybody,
}


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS)
def test_hook_lets_in(shop, hook):
    """A hook may be sync or async, a function or an object."""
    with served(shop, hook) as url:
        for path, parameters in GOOD.items():
            assert httpx.head(url + path, params=parameters).status_code == 200
        page = httpx.get(f"{url}/events", params=GOOD["/events"])
        assert page.text.count('"data"') == 20


REFUSALS = {
    "unauthorized": (raising(Unauthorized("Who are you?")), 401, "unauthorized"),
    "forbidden": (raising(Forbidden("Not you.")), 403, "forbidden"),
    "too many": (raising(TooManyRequests("Later.", retry_after=7)), 429, "too-many-requests"),
    "unavailable": (raising(Unavailable("The directory is away.")), 503, "unavailable"),
    "None": (lambda request: None, 500, "failed"),
    "True": (lambda request: True, 500, "failed"),
    "a name": (lambda request: "reader", 500, "failed"),
    "a class": (lambda request: Principal, 500, "failed"),
    "a coroutine of nothing": (lambda request: anyio.sleep(0.001), 500, "failed"),
    "an error": (raising(KeyError(TOKEN)), 500, "failed"),
    "no principal": (lambda request: Principal(name="a\nb"), 500, "failed"),
    "an end": (raising(StopIteration()), 500, "failed"),
    "a failed assertion": (raising(AssertionError(TOKEN)), 500, "failed"),
}


@pytest.mark.parametrize(("hook", "status", "problem"), REFUSALS.values(), ids=REFUSALS)
def test_what_is_no_principal_lets_nobody_in(shop, hook, status, problem):
    """Whatever a hook does but return a Principal keeps everybody out, on every route."""
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
        head = httpx.head(url)
        assert (head.status_code, head.content) == (status, b"")


class NoReaders(dict):
    """Be a hook that holds its readers, of which there are none."""

    async def __call__(self, request):
        """Know nobody."""
        raise Forbidden("Nobody may read this feed.")


def test_hook_of_no_readers_is_a_hook(shop):
    """A hook that Python takes for nothing, such as an empty collection, keeps everybody out."""
    with served(shop, NoReaders()) as url:
        assert httpx.get(url).status_code == 403
    application = FeedAuthorization(Starlette(routes=routes(shop)), NoReaders())
    with serving(application) as url:
        assert httpx.get(f"{url}/orders").status_code == 403


def test_failing_hook_is_told_to_the_operator(shop, caplog):
    """A hook that is wrong is in the log, with what it has to do."""
    with served(shop, lambda request: True) as url:
        httpx.get(url)
    assert "returned bool" in caplog.text
    assert "return a Principal" in caplog.text


@pytest.mark.parametrize("exception", [HTTPException, FastAPIException])
def test_exceptions_of_the_host_are_for_its_own_handlers(shop, exception):
    """What the host's hook raises as the host does elsewhere is answered as elsewhere."""

    def hook(request):
        raise exception(418, "the host's own")

    async def handler(request, error):
        return JSONResponse({"own": error.detail}, error.status_code)

    application = Starlette(routes=routes(shop, hook), exception_handlers={418: handler})
    with serving(application) as url:
        answer = httpx.get(f"{url}/orders")
        assert (answer.status_code, answer.json()) == (418, {"own": "the host's own"})


def test_hook_that_takes_too_long_is_given_up(shop):
    """Who asks is found out in the time that a request stands in line, or nobody is let in."""

    async def slow(request):
        await anyio.sleep(60)
        return READER

    with served(shop, slow, capacity=Capacity(patience=0.2)) as url:
        answer = httpx.get(url)
        assert (answer.status_code, kind(answer)) == (503, "unavailable")


def test_hook_that_blocks_does_not_block_the_application(shop):
    """Hooks that are not async wait in threads of the feed's own, and few of them."""
    running, most, lock = 0, 0, threading.Lock()

    def hook(request):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.2)
        with lock:
            running -= 1
        return READER

    patient = Capacity(patience=60)
    with served(shop, hook, capacity=patient) as url, ThreadPoolExecutor(20) as pool:
        found = list(pool.map(lambda _: httpx.get(url, timeout=60).status_code, range(20)))
    assert found == [200] * 20
    assert 2 <= most <= 4


def test_what_is_no_hook_is_refused(shop):
    """A hook that cannot be called is refused when the feed is mounted."""
    for wrong in ("everybody", True, READER, {}):
        with pytest.raises(ConfigurationError, match="authorize"):
            routes(shop, wrong)
        with pytest.raises(ConfigurationError, match="authorize"):
            FeedAuthorization(Starlette(), wrong)


def test_shared_cache_is_only_for_everybody(shop):
    """What a shared cache has it gives to all, so that a feed that not all may read refuses it."""
    with pytest.raises(ConfigurationError, match="shared cache"):
        routes(shop, async_hook, shared_cache=True)
    for public in (None, everybody):
        with served(shop, public, shared_cache=True) as url:
            answer = full_page(url)
            assert answer.headers["cache-control"].startswith("public")
            assert "vary" not in answer.headers


def full_page(url, **headers):
    """A page that stays as it is for ever."""
    page = httpx.get(f"{url}/events", params=GOOD["/events"] | {"pagesizehint": 2}, headers=headers)
    cursor = json.loads(page.text.splitlines()[-1])["cursor"]
    parameters = {**GOOD["/events"], "cursor": cursor, "pagesizehint": 2}
    return httpx.get(f"{url}/events", params=parameters, headers=headers)


# Applications that deny by default.


def starlette_of(shop, authorize, options):
    """A feed in an application of Starlette."""
    middleware = [Middleware(FeedAuthorization, **options)]
    return Starlette(routes=routes(shop, authorize), middleware=middleware)


def fastapi_of(shop, authorize, options):
    """A feed in an application of FastAPI."""
    application = FastAPI(routes=routes(shop, authorize))
    application.add_middleware(FeedAuthorization, **options)
    return application


def mounted_in_starlette(shop, authorize, options):
    """A feed in a Mount that denies, below an application that does not."""
    middleware = [Middleware(FeedAuthorization, **options)]
    below = Mount("/below", routes=routes(shop, authorize), middleware=middleware)
    return Starlette(routes=[below])


def mounted_below_fastapi(shop, authorize, options):
    """A feed in an application of its own, mounted in one that denies."""
    below = FastAPI(routes=routes(shop, authorize))
    application = FastAPI(middleware=[Middleware(FeedAuthorization, **options)])
    application.mount("/below", below)
    return application


def wrapped(shop, authorize, options):
    """An application as a whole, wrapped by hand."""
    return FeedAuthorization(Starlette(routes=routes(shop, authorize)), **options)


APPLICATIONS = {
    starlette_of: "/orders",
    fastapi_of: "/orders",
    mounted_in_starlette: "/below/orders",
    mounted_below_fastapi: "/below/orders",
    wrapped: "/orders",
}


@pytest.mark.parametrize(
    ("build", "path"), APPLICATIONS.items(), ids=[build.__name__ for build in APPLICATIONS]
)
def test_application_denies_by_default(shop, build, path):
    """In such an application a feed is read by nobody until it says who may."""
    with serving(build(shop, None, {})) as url:
        for below in PATHS:
            answer = httpx.get(url + path + below, params=GOOD.get(below), headers=HEADERS)
            assert (answer.status_code, kind(answer)) == (401, "unauthorized")
            assert answer.headers["vary"] == "Authorization"
    with serving(build(shop, everybody, {})) as url:
        assert httpx.get(url + path).status_code == 200
        assert "vary" not in httpx.get(url + path).headers
    hook = bearer_tokens({TOKEN: "reader"})
    with serving(build(shop, hook, {})) as url:
        assert httpx.get(url + path).status_code == 401
        assert httpx.get(url + path, headers=HEADERS).status_code == 200
    with serving(build(shop, None, {"authorize": hook})) as url:
        assert httpx.get(url + path).status_code == 401
        assert httpx.get(url + path, headers=HEADERS).status_code == 200
        page = full_page(url + path, **HEADERS)
        assert page.headers["cache-control"].startswith("private")
        assert page.headers["vary"] == "Authorization"
    with serving(build(shop, raising(Forbidden("Not you.")), {"authorize": everybody})) as url:
        assert httpx.get(url + path).status_code == 403


def test_shared_cache_below_a_hook_is_no_shared_cache(shop):
    """A feed that did not know of its application's hook does not give pages to shared caches."""
    hook = bearer_tokens({TOKEN: "reader"})
    application = FeedAuthorization(Starlette(routes=routes(shop, shared_cache=True)), hook)
    with serving(application) as url:
        page = full_page(f"{url}/orders", **HEADERS)
        assert page.headers["cache-control"].startswith("private")
        assert page.headers["vary"] == "Authorization"


def test_rest_of_the_application_is_left_alone(shop):
    """Only feeds take notice of the hook."""
    application = FastAPI(middleware=[Middleware(FeedAuthorization)])
    application.router.routes.extend(routes(shop))

    @application.get("/health")
    def health():
        return {"ok": True}

    with serving(application) as url:
        assert httpx.get(f"{url}/health").json() == {"ok": True}
        assert httpx.get(f"{url}/orders").status_code == 401


def test_denial_is_a_hook_of_its_own(shop):
    """A feed may deny by itself, for as long as nobody may read it."""
    with served(shop, deny) as url:
        assert httpx.get(url).status_code == 401


# Bearer tokens.


def test_bearer_token_lets_in(shop):
    """A token is shown in one header Authorization, whatever the case of the scheme."""
    with served(shop, bearer_tokens({TOKEN: "reader", "b" * 16: "other"})) as url:
        for scheme in ("Bearer", "bearer", "BEARER"):
            for blank in (" ", "   "):
                header = {"Authorization": f"{scheme}{blank}{TOKEN}"}
                assert httpx.get(url, headers=header).status_code == 200
        for wrong in (
            {},
            {"Authorization": TOKEN},
            {"Authorization": "Basic cmVhZGVyOnNlY3JldA=="},
            {"Authorization": ""},
            [("Authorization", f"Bearer {TOKEN}"), ("Authorization", f"Bearer {TOKEN}")],
            {"X-Authorization": f"Bearer {TOKEN}"},
        ):
            answer = httpx.get(url, headers=wrong)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        for wrong in (TOKEN[:-1], f"{TOKEN}x", TOKEN.upper(), "b" * 15, "\xe5" * 20):
            answer = httpx.get(url, headers={"Authorization": f"Bearer {wrong}".encode("latin-1")})
            challenge = answer.headers["www-authenticate"]
            assert (answer.status_code, challenge) == (401, 'Bearer error="invalid_token"')
            assert wrong not in answer.text
        parameters = {"access_token": TOKEN, "token": TOKEN}
        assert httpx.get(url, params=parameters).status_code == 401


def test_tokens_are_in_no_log(shop, caplog):
    """What a reader shows as a token is logged nowhere, whether it is known or not."""
    caplog.set_level(logging.DEBUG)
    logging.getLogger("httpcore").setLevel(logging.WARNING)
    with served(shop, bearer_tokens({TOKEN: "reader"})) as url:
        httpx.get(url, headers=HEADERS)
        httpx.get(url, headers={"Authorization": "Bearer canary-canary-canary"})
        httpx.get(url, headers={"Authorization": f"Basic {TOKEN}"})
    assert "canary" not in caplog.text
