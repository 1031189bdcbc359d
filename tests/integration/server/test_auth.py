"""Which readers a hook or token admits, and how much one principal may use."""

import hashlib
import hmac
import logging
import threading
from contextlib import suppress

import anyio
import httpx
import pytest
from fastapi import FastAPI
from harness.readers import (
    GOOD,
    HEADERS,
    PATIENCE,
    READER,
    TOKEN,
    NoReaders,
    Numbers,
    cursor_of,
    get,
    kind,
    mounted,
    of_name,
    open_stream,
    page_url,
    raising,
    routes,
    served,
)
from harness.shop import fill, orders, write
from harness.stalled import answer, ask
from harness.waiting import until
from harness.web import serving
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import Mount

from zeroeventhub import (
    FIRST,
    Capacity,
    FeedAuthorization,
    Principal,
    Quota,
    TableFeed,
    bearer_tokens,
    everybody,
)
from zeroeventhub.errors import (
    ConfigurationError,
    Forbidden,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from zeroeventhub.extensions import EXTENSIONS
from zeroeventhub.server import auth, deny

PATHS = ["", "/events", "/http-feed", "/server-sent-events"]
PATHS += [f"/{one.path}" for one in EXTENSIONS.values() if one.path and one.verb == "GET"]


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
def test_hook_that_returns_no_principal_keeps_every_reader_out(shop, caplog, hook, status, problem):
    """A hook that returns no Principal keeps all readers out; the log says what it has to do."""
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
        assert httpx.delete(f"{url}/progress").status_code == status
        head = httpx.head(url)
        assert (head.status_code, head.content) == (status, b"")
    if hook is REFUSALS["true"][0]:
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
    """A hook that does not answer in time admits no reader, whatever it returns later."""
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


def full_page(url, **headers):
    """A page that stays as it is for ever."""
    first = cursor_of(get(url, pagesizehint=2, headers=headers))
    return get(url, cursor=first, pagesizehint=2, headers=headers)


def test_shared_cache_is_only_for_everybody(shop):
    """A shared cache serves all clients, so a feed with a hook refuses it."""
    with pytest.raises(ConfigurationError, match="shared cache"):
        routes(shop, lambda request: READER, shared_cache=True)
    for public in (None, everybody):
        with served(shop, public, shared_cache=True) as url:
            answer = full_page(url)
            assert answer.headers["cache-control"].startswith("public")
            assert "vary" not in answer.headers
    hook = bearer_tokens({TOKEN: "reader"})
    with serving(wrapped(shop, None, authorize=hook, shared_cache=True)) as url:
        page = full_page(f"{url}/orders", **HEADERS)
        assert page.headers["cache-control"].startswith("private")
        assert page.headers["vary"] == "Authorization"


def fastapi_of(shop, own, **options):
    """A feed in an application of FastAPI."""
    application = FastAPI(routes=routes(shop, own))
    application.add_middleware(FeedAuthorization, **options)
    return application


def mounted_in_starlette(shop, own, **options):
    """A feed in a Mount that denies, below an application that does not."""
    middleware = [Middleware(FeedAuthorization, **options)]
    below = Mount("/below", routes=routes(shop, own), middleware=middleware)
    return Starlette(routes=[below])


def wrapped(shop, own, *, shared_cache=False, **options):
    """An application as a whole, wrapped by hand."""
    application = Starlette(routes=routes(shop, own, shared_cache=shared_cache))
    return FeedAuthorization(application, **options)


APPLICATIONS = {fastapi_of: "/orders", mounted_in_starlette: "/below/orders", wrapped: "/orders"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "path"), APPLICATIONS.items(), ids=[build.__name__ for build in APPLICATIONS]
)
def test_application_denies_by_default(shop, build, path):
    """In such an application a feed refuses all readers until it has a hook."""
    with serving(build(shop, None)) as url:
        for below in GOOD:
            answer = httpx.get(url + path + below, params=GOOD[below], headers=HEADERS)
            assert (answer.status_code, kind(answer)) == (401, "unauthorized")
            assert answer.headers["vary"] == "Authorization"
    with serving(build(shop, everybody)) as url:
        assert httpx.get(url + path).status_code == 200
        assert "vary" not in httpx.get(url + path).headers
    hook = bearer_tokens({TOKEN: "reader"})
    with serving(build(shop, hook)) as url:
        assert httpx.get(url + path).status_code == 401
        assert httpx.get(url + path, headers=HEADERS).status_code == 200
    with serving(build(shop, None, authorize=hook)) as url:
        assert httpx.get(url + path).status_code == 401
        assert httpx.get(url + path, headers=HEADERS).status_code == 200
    with serving(build(shop, raising(Forbidden("Not you.")), authorize=everybody)) as url:
        assert httpx.get(url + path).status_code == 403


def test_rest_of_the_application_is_left_alone(shop):
    """Only feeds take notice of the hook, and a feed may deny by itself."""
    application = FastAPI(middleware=[Middleware(FeedAuthorization)])
    application.router.routes.extend(routes(shop))

    @application.get("/health")
    def health():
        return {"ok": True}

    with serving(application) as url:
        assert httpx.get(f"{url}/health").json() == {"ok": True}
        assert httpx.get(f"{url}/orders").status_code == 401
    with served(shop, deny) as url:
        assert httpx.get(url).status_code == 401


def test_bearer_token_lets_in(shop, caplog):
    """A token is shown in one header Authorization, and what a reader shows is logged nowhere."""
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.WARNING, logger="httpcore")
    with served(shop, bearer_tokens({TOKEN: "reader", "b" * 16: "other"})) as url:
        for scheme in ("Bearer", "bearer", "BEARER"):
            for blank in (" ", "   "):
                header = {"Authorization": f"{scheme}{blank}{TOKEN}"}
                assert httpx.get(url, headers=header).status_code == 200
        for wrong in (
            {},
            {"Authorization": TOKEN},
            {"Authorization": f"Basic {TOKEN}"},
            {"Authorization": ""},
            [("Authorization", f"Bearer {TOKEN}"), ("Authorization", f"Bearer {TOKEN}")],
            {"X-Authorization": f"Bearer {TOKEN}"},
        ):
            answer = httpx.get(url, headers=wrong)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert "canary" not in caplog.text
        for wrong in (TOKEN[:-1], f"{TOKEN}x", TOKEN.upper(), "b" * 15, "\xe5" * 20):
            answer = httpx.get(url, headers={"Authorization": f"Bearer {wrong}".encode("latin-1")})
            challenge = answer.headers["www-authenticate"]
            assert (answer.status_code, challenge) == (401, 'Bearer error="invalid_token"')
            assert wrong not in answer.text + caplog.text
        parameters = {"access_token": TOKEN, "token": TOKEN}
        assert httpx.get(url, params=parameters).status_code == 401


def test_every_token_stands_for_its_reader_and_is_compared_in_constant_time(shop, monkeypatch):
    """Each known token is compared, by digests of one length, and lets in its own reader."""
    compared = []

    def compare(one, other):
        compared.append((len(one), len(other)))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(auth, "compare_digest", compare)
    names = [f"{letter}-0123456789abcdef" for letter in "abcde"]
    known = {name: Principal(name=name, partitions={0} if name[0] < "c" else ()) for name in names}
    with served(shop, bearer_tokens(known)) as url:
        for shown in (*names, "unknown-0123456789", "x"):
            compared.clear()
            answer = httpx.get(url, headers={"Authorization": f"Bearer {shown}"})
            assert answer.status_code == (200 if shown in names else 401)
            assert compared == [(32, 32)] * len(names)
            if shown in names:
                assert len(answer.json()["partitions"]) == (shown[0] < "c")


def test_token_may_be_given_as_its_hash(shop):
    """The token of a hash is accepted, and the hash itself is not."""
    hashed = f"sha256:{hashlib.sha256(TOKEN.encode()).hexdigest()}"
    with served(shop, bearer_tokens({hashed: "reader"})) as url:
        for shown, status in ((TOKEN, 200), (hashed, 401), (hashed[7:], 401)):
            answer = httpx.get(url, headers={"Authorization": f"Bearer {shown}"})
            assert answer.status_code == status
    for wrong in (hashed[:-1], hashed.upper(), f"{hashed}\n"):
        with pytest.raises(ConfigurationError, match="token"):
            bearer_tokens({wrong: "reader"})


def test_tokens_are_not_kept():
    """Nothing that a hook holds, and nothing that it shows of itself, is a token."""
    hook = bearer_tokens({TOKEN: "reader"})
    kept = [cell.cell_contents for cell in hook.__closure__]
    assert TOKEN not in f"{hook!r} {vars(hook)!r} {kept!r}"


@pytest.mark.parametrize(
    "token",
    ["", "short", "x" * 15, *(TOKEN + end for end in (" ", "\n", "å")), f"a {TOKEN}", None, 7],
)
def test_token_that_could_be_guessed_or_never_shown_is_refused(token):
    """A token has sixteen characters or more, of those of RFC 6750; no error repeats it."""
    with pytest.raises(ConfigurationError, match="token") as caught:
        bearer_tokens({token: "reader"})
    assert "canary" not in str(caught.value)


OTHER = "other-0123456789abcdef"
OTHERS = {"Authorization": f"Bearer {OTHER}"}


def test_reader_that_asks_too_often_learns_when_to_retry(shop):
    """The rate is each reader's own, or that of the routes; answers say when to come again."""
    slow = Principal(name="slow", quota=Quota(rate=0.01, burst=2))
    with served(shop, bearer_tokens({TOKEN: slow, OTHER: "other"})) as url:
        answers = [httpx.get(url, headers=HEADERS) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
        assert kind(answers[-1]) == "too-many-requests"
        assert 95 <= int(answers[-1].headers["retry-after"]) <= 100
        assert [httpx.get(url, headers=OTHERS).status_code for _ in range(5)] == [200] * 5
    own = Principal(name="own", quota=Quota(rate=1000))
    hook = bearer_tokens({TOKEN: own, OTHER: "other"})
    with served(shop, hook, quota=Quota(rate=0.01, burst=1)) as url:
        assert [httpx.get(url, headers=OTHERS).status_code for _ in range(2)] == [200, 429]
        assert [httpx.get(url, headers=HEADERS).status_code for _ in range(3)] == [200] * 3


@pytest.mark.parametrize("bound", ["in_flight", "waiters"])
def test_place_is_given_back(bound, watcher):
    """Never more requests than allowed run, also after others were answered, failed or left."""
    feed = Numbers()
    quota = Quota(**{bound: 2})
    with mounted(feed, authorize=of_name, quota=quota, observer=watcher) as url:
        for ending in ("answered", "failed", "left", "answered"):
            head = {"cursor": str(feed.count), "name": "reader"}
            waiting = [ask(page_url(url, **head, wait=30)) for _ in range(2)]
            watcher.until_waiting(2)
            for _ in range(3):
                refused = get(url, **head, wait=1)
                assert (refused.status_code, kind(refused)) == (429, "too-many-requests")
            assert get(url, **{**head, "name": "other"}).status_code == 200
            match ending:
                case "answered":
                    feed.count += 1
                case "failed":
                    feed.error = Unavailable("The feed is away.")
                case "left":
                    waiting.pop().close()
                    waiting.pop().close()
            status = {"answered": 200, "failed": 503}.get(ending)
            assert [answer(one)[0] for one in waiting] == [status] * len(waiting)
            for one in waiting:
                one.close()
            watcher.until_waiting(0)
            feed.error = None


def test_only_requests_that_wait_are_waiters(shop, watcher, pool):
    """A reader with one place to wait at the head reads on without it, and gets it back."""
    reader = Principal(name="reader", quota=Quota(waiters=1))
    with served(shop, bearer_tokens({TOKEN: reader}), observer=watcher) as url:
        head = cursor_of(get(url, headers=HEADERS))
        waiting = pool.submit(get, url, cursor=head, wait=10, headers=HEADERS)
        watcher.until_waiting(1)
        for path, parameters in [
            ("/events", {**GOOD["/events"], "cursor": head, "wait": "1"}),
            ("/http-feed", {"timeout": "1000", "lastEventId": "10"}),
            ("/server-sent-events", {"cursor": head}),
        ]:
            refused = httpx.get(url + path, params=parameters, headers=HEADERS, timeout=PATIENCE)
            assert (refused.status_code, kind(refused)) == (429, "too-many-requests")
        # What is answered at once waits for nothing.
        assert get(url, cursor=head, headers=HEADERS).status_code == 200
        assert get(url, wait=30, headers=HEADERS).status_code == 200
        write(shop)
        assert waiting.result().status_code == 200
        watcher.until_waiting(0)
        head = cursor_of(waiting.result())
        assert get(url, cursor=head, wait="0.01", headers=HEADERS).status_code == 200


def test_reader_that_reads_page_after_page_has_one_request_in_flight(sqlite):
    """A reader that asks for page after page needs one place, also while others are prefetched."""
    fill(sqlite, 20_000)
    reader, cursor = Principal(name="reader", quota=Quota(in_flight=1)), FIRST
    hook = bearer_tokens({TOKEN: reader})
    with (
        mounted(TableFeed(orders, data="data"), sqlite, authorize=hook) as url,
        httpx.Client() as http,
    ):
        for _ in range(20):
            cursor = cursor_of(http.get(page_url(url, cursor=cursor), headers=HEADERS))


def test_stream_is_under_way_until_it_is_closed(shop):
    """A stream counts as one request for as long as it is open."""
    reader = Principal(name="reader", quota=Quota(in_flight=1))
    with served(shop, bearer_tokens({TOKEN: reader})) as url:

        def refused_meanwhile(received):
            answer = httpx.get(url, headers=HEADERS)
            assert (answer.status_code, kind(answer)) == (429, "too-many-requests")
            return True

        for _ in range(2):
            open_stream(url, refused_meanwhile, headers=HEADERS)
            until(lambda: httpx.get(url, headers=HEADERS).status_code == 200, "it is let in")
