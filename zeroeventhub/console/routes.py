"""The routes of a console: what it shows, to whom, and how it is asked."""

import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hmac import compare_digest
from secrets import token_urlsafe
from typing import Any
from urllib.parse import parse_qs, quote, urlencode
from uuid import uuid4

from anyio import to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import Receive, Scope, Send

from zeroeventhub.client import AsyncClient
from zeroeventhub.console import changes as of_changes
from zeroeventhub.console import consumers as of_consumers
from zeroeventhub.console import events as of_events
from zeroeventhub.console import feeds as of_feeds
from zeroeventhub.console.changes import Change
from zeroeventhub.console.consumers import ConsoleStore, SeenConsumer
from zeroeventhub.console.events import EventQuery, moment_in
from zeroeventhub.console.feeds import ConsoleFeed, console_feed
from zeroeventhub.console.pages import HEADERS, asset, json_answer, page
from zeroeventhub.consumer.store.cursor_store import CursorStore
from zeroeventhub.errors import (
    BadRequest,
    ConfigurationError,
    FeedFailure,
    Forbidden,
    NotFound,
    TransientError,
    Unauthorized,
    Unavailable,
    ZeroEventHubError,
)
from zeroeventhub.server.auth import SCOPE_KEY, Access, Authorize, Principal, everybody
from zeroeventhub.server.problems import FAILED, check_help, describe, problem
from zeroeventhub.server.request import number_in
from zeroeventhub.server.sending import READER, Sender
from zeroeventhub.settings import Capacity

_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}", re.ASCII)

_COOKIE = "zeroeventhub_console"
"""The cookie with the token of somebody who signed in."""

_LARGEST_FORM = 64 * 1024

_log = logging.getLogger("zeroeventhub.console")


@dataclass(frozen=True)
class Console:
    """What a console shows."""

    path: str  # where it is mounted, without a slash at the end
    feeds: Mapping[str, ConsoleFeed]
    stores: Mapping[str, ConsoleStore]
    access: Access  # identifies who looks
    sender: Sender  # sends what is shown
    allows_changes: bool
    help_url: str  # the page of errors that problem documents name; empty for none

    async def identify(self, request: Request) -> Principal:
        """Return the principal of a request, by the console's hook or the application's."""
        hook = self.access.hook
        if hook is None:  # a hook object may be empty and hence false
            hook = request.scope.get(SCOPE_KEY, everybody)
        return await self.access.identify(request, hook)

    def feed(self, request: Request) -> ConsoleFeed:
        """Return the feed that an address names."""
        found = self.feeds.get(request.path_params["feed"])
        if found is None:
            raise NotFound("This console has no such feed.")
        return found

    def store(self, request: Request) -> ConsoleStore:
        """Return the store that an address names."""
        found = self.stores.get(request.path_params["store"])
        if found is None:
            raise NotFound("This console has no such store.")
        return found

    async def consumer(self, request: Request, name: str, principal: Principal) -> SeenConsumer:
        """Return the consumer of a name in the store that an address names."""
        readers = [feed.reader(request) for feed in self.feeds.values()]
        return await of_consumers.find(self.store(request), name, principal, readers)


Data = Callable[[Console, Request, Principal], Awaitable[dict[str, Any]]]
"""Returns what a page shows, which is also what its address in the API answers."""


@dataclass(frozen=True)
class View:
    """A page, and the same as JSON."""

    path: str  # its address below the console's; the API's is `/api`, this path and `.json`
    data: Data
    template: str = ""  # empty if there is only JSON


async def _overview(console: Console, request: Request, principal: Principal) -> dict[str, Any]:
    return {
        "feeds": [await _overview_of(feed, request) for feed in console.feeds.values()],
        "consumers": [
            line
            for store in console.stores.values()
            for line in await of_consumers.list_consumers(store, principal)
        ],
        "stores": [*console.stores],
    }


async def _overview_of(feed: ConsoleFeed, request: Request) -> dict[str, Any]:
    try:
        return await of_feeds.overview(feed.reader(request))
    except HTTPException as error:  # the host's own, from the feed's hook
        refused = error.status_code == Unauthorized.status
        return {"name": feed.name, "error": error.detail, "unauthorized": refused}
    except ZeroEventHubError as error:
        refused = isinstance(error, Unauthorized)
        return {"name": feed.name, "error": _told(error), "unauthorized": refused}


async def _feed(console: Console, request: Request, _: Principal) -> dict[str, Any]:
    feed, chosen = console.feed(request), _number(request, "partition")
    found = await of_feeds.describe(feed.reader(request), chosen)
    return {**found, **_address(console, feed, request), "hours": _hours(request)}


_FILTERS = ("id", "key", "type", "time", "zone", "cursor", "limit")


async def _events(console: Console, request: Request, _: Principal) -> dict[str, Any]:
    feed = console.feed(request)
    given = {name: request.query_params.get(name, "") for name in _FILTERS}
    limit = _number(request, "limit") or of_events.PAGE
    asked = EventQuery(
        partition=_number(request, "partition"),
        cursor=given["cursor"],
        moment=moment_in(given["time"], given["zone"]) if given["time"] else None,
        id=given["id"],
        type=given["type"],
        key=given["key"],
        after_version=_number(request, "after_version") or 0,
        limit=min(max(limit, 1), of_events.LARGEST_PAGE),
        wait=float(min(_number(request, "wait") or 0, of_events.LONGEST_WAIT)),
    )
    address = _address(console, feed, request)
    found = await of_events.events(feed.reader(request), asked, address["url"])
    return {**found, **address, "asked": given, "follows": "follow" in request.query_params}


def _address(console: Console, feed: ConsoleFeed, request: Request) -> dict[str, str]:
    """Return the address of a feed as programs know it, and the way there from the console."""
    if feed.client is not None:
        return {"url": feed.client.address, "way": ""}
    root = request.scope.get("app_root_path", "")
    url = f"{request.url.scheme}://{request.url.netloc}{root}{feed.path}".rstrip("/")
    depth = len(console.path.split("/")) if console.path else 0
    return {"url": url, "way": "../" * depth + feed.path.lstrip("/")}


def _hours(request: Request) -> int:
    return min(max(_number(request, "hours") or 6, 1), of_feeds.MOST_HOURS)


async def _rates(console: Console, request: Request, _: Principal) -> dict[str, Any]:
    number = _number(request, "partition") or 0
    return await of_feeds.rates(console.feed(request).reader(request), number, _hours(request))


async def _lags(console: Console, request: Request, _: Principal) -> dict[str, Any]:
    chosen = _number(request, "partition")
    return await of_feeds.lags(console.feed(request).reader(request), chosen)


async def _consumer(console: Console, request: Request, principal: Principal) -> dict[str, Any]:
    found = await console.consumer(request, request.query_params.get("name", ""), principal)
    return {**await of_consumers.describe(found, principal), "done": _number(request, "done")}


async def _lag(console: Console, request: Request, principal: Principal) -> dict[str, Any]:
    found = await console.consumer(request, request.query_params.get("name", ""), principal)
    return of_consumers.total((await of_consumers.lags(found)).values())


async def _dead_letter(console: Console, request: Request, principal: Principal) -> dict[str, Any]:
    name, number = request.query_params.get("name", ""), _number(request, "id") or 0
    return await of_consumers.dead_letter(console.store(request), name, number, principal)


async def _audit(console: Console, request: Request, principal: Principal) -> dict[str, Any]:
    _expect_whole(principal)
    store = console.store(request)
    return {"store": store.name, "entries": await of_changes.audit_entries(store)}


_OF_A_CHANGE = ("name", "action", "partition", "time", "zone", "id")
"""Parameters of a link that the form takes over: no other, such as what stands for a consent."""


async def _confirm(console: Console, request: Request, principal: Principal) -> dict[str, Any]:
    """Say what a change will do; the form of the page that shows it does it."""
    query = {name: request.query_params.getlist(name) for name in _OF_A_CHANGE}
    change = await _planned(console, request, principal, query)
    # The moment that the operator has confirmed, and not one that is counted from later.
    if query["time"] and query["time"][0]:
        moment = moment_in(query["time"][0], (query.pop("zone") or [""])[0])
        query["time"] = [moment.isoformat()]
    query["ids"] = [*map(str, change.ids)]
    query.pop("id")
    fields = [{"name": name, "value": value} for name in query for value in query[name]]
    return {
        "store": console.store(request).name,
        "consumer": change.consumer,
        "action": change.action,
        "text": change.text,
        "lines": [*map(str, change.moves)],
        "fields": [*fields, {"name": "confirmed", "value": change.digest}],
    }


async def _planned(
    console: Console, request: Request, principal: Principal, form: Mapping[str, list[str]]
) -> Change:
    """Return the change that a form asks for, if this principal may change anything."""
    if not console.allows_changes:
        raise Forbidden("Changes are off: start the console with allow_changes.")
    _expect_whole(principal)
    given = {name: values[0] for name, values in form.items() if values}
    ids = [number_in(one, "id") for one in (*form.get("id", ()), *form.get("ids", ()))]
    partition = given.get("partition", "")
    consumer = await console.consumer(request, given.get("name", ""), principal)
    return await of_changes.plan(
        consumer,
        given.get("action", ""),
        partition=number_in(partition, "partition") if partition else None,
        time=given.get("time", ""),
        zone=given.get("zone", ""),
        ids=ids,
    )


def _sees_all(principal: Principal) -> bool:
    return principal.partitions is None and principal.types is None


def _expect_whole(principal: Principal) -> None:
    if not _sees_all(principal):
        raise Forbidden("This is for those who may see everything.")


async def _change(console: Console, request: Request) -> Response:
    """Do what a confirmed form says, and lead back to the consumer."""
    request = _signed_in(request)
    try:
        form = await read_form(request)
        principal = await console.identify(request)
        change = await _planned(console, request, principal, form)
        (confirmed, *_), store = form.get("confirmed", [""]), console.store(request)
        number = await of_changes.carry_out(store, change, principal.name, confirmed=confirmed)
    except HTTPException:
        raise
    except Exception as error:  # noqa: BLE001 - its text is for the log alone
        return _error(console, request, error)
    query = urlencode({"name": change.consumer, "done": number})
    return RedirectResponse(f"consumer?{query}", 303, HEADERS)


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name, "")
    return number_in(text, name) if text else None


VIEWS = (
    View("/", _overview, "overview.html"),
    View("/feeds/{feed}", _feed, "feed.html"),
    View("/feeds/{feed}/events", _events, "events.html"),
    View("/feeds/{feed}/rates", _rates),
    View("/feeds/{feed}/lags", _lags),
    View("/stores/{store}/consumer", _consumer, "consumer.html"),
    View("/stores/{store}/lag", _lag, "lag.html"),
    View("/stores/{store}/dead-letter", _dead_letter, "dead_letter.html"),
    View("/stores/{store}/confirm", _confirm, "confirm.html"),
    View("/stores/{store}/audit", _audit, "audit.html"),
)


def console_routes(
    path: str,
    *,
    feeds: Mapping[str, Sequence[BaseRoute] | AsyncClient],
    stores: Mapping[str, CursorStore] | None = None,
    authorize: Authorize | None = None,
    allow_changes: bool = False,
    help_url: str = "",
) -> list[BaseRoute]:
    """Return the routes of a console, for an application of Starlette or FastAPI.

    A browser that opens the address of one of its feeds is sent there. A console at "/" answers
    every address that no route before it does: put it last.

    Args:
        path: where the console is mounted, such as "/console".
        feeds: by name, what `feed_routes` returned, for the same application, or an AsyncClient of
            a feed elsewhere. The hook of a feed of this application decides what a person sees of
            it, as does a FeedAuthorization that is around the console too; of a feed elsewhere
            everybody sees what its client may read.
        stores: by name, the stores whose consumers it shows; they need `authorize`. Of its feeds, a
            consumer is shown beside the one that knows its cursors.
        authorize: who may open the console, as the hook of a feed; by default that of a
            FeedAuthorization around it, or everybody. Without it, only readers with a name see the
            names of writers that hold the horizon back and of consumers that register.
        allow_changes: let those who may see everything retry and discard dead letters, and move
            cursors. The hook is asked at each change, which is a POST.
        help_url: the page of errors that problem documents name, as for `feed_routes`.

    Raises:
        ConfigurationError: a name or a feed is not allowed, `help_url` is not a URL, or stores have
            no `authorize`.
    """
    check_help(help_url)
    mounted, stores = path.strip("/"), stores or {}
    if stores and authorize is None:
        raise ConfigurationError(
            "Stores hold events and errors of consumers: say who may see them by authorize=…, "
            "which is everybody for a console that only trusted people reach."
        )
    for name in (*feeds, *stores):
        if not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"{name!r} cannot be a name in a console: it has 1 to 100 letters, digits and "
                "characters of ._-"
            )
    console = Console(
        mounted,
        {
            name: console_feed(name, given, mounted, tells_names=authorize is not None)
            for name, given in feeds.items()
        },
        {name: ConsoleStore(name, store) for name, store in stores.items()},
        Access(authorize, patience=_PATIENCE),
        Sender(Capacity()),
        allow_changes,
        help_url,
    )
    routes = [Route("/assets/{name}", _asset), *_sign_in_routes(console)]
    for view in VIEWS:
        if view.template:
            routes.append(Route(view.path, partial(_show, console, view)))
        name = "/overview" if view.path == "/" else view.path
        routes.append(Route(f"/api{name}.json", partial(_show, console, view, as_json=True)))
    change = partial(_change, console)
    routes.append(Route("/stores/{store}/change", change, methods=["POST"]))
    missing = partial(_refuse, console)
    routes.append(Route("/{path:path}", missing, methods=["GET", "POST"]))
    if not mounted:
        return [Mount("", routes=routes)]
    entry = Route(f"/{mounted}", partial(_enter, f"{mounted.rpartition('/')[2]}/"))
    return [entry, Mount(f"/{mounted}", routes=routes)]


_PATIENCE = 5.0
"""Seconds that the console's hook may take."""


async def _enter(location: str, _: Request) -> Response:
    """Send a browser to the address with a slash at the end, below which the others are."""
    return RedirectResponse(location, 302, HEADERS)


async def _asset(request: Request) -> Response:
    try:
        return asset(request.path_params["name"])
    except KeyError:
        return Response(status_code=404, headers=HEADERS)


async def _show(
    console: Console, view: View, request: Request, *, as_json: bool = False
) -> "Response | _Sent":
    """Answer with a page, or with the same as JSON."""
    request = _signed_in(request)
    try:
        principal = await console.identify(request)
        data = await view.data(console, request, principal)
        if as_json:
            answer = json_answer(data)
        else:
            data["may_change"] = console.allows_changes and _sees_all(principal)
            # In a thread: of thousands of consumers it takes seconds, in which feeds go on.
            answer = await to_thread.run_sync(_page, console, request, view.template, data)
        if not console.sender.budget.fits(len(answer.body)):
            full = Unavailable("Answers to slow readers use up what a console may send.")
            return _error(console, request, full, as_json=as_json)
        READER.set(principal.name)
        return _Sent(answer, console.sender)
    except HTTPException:
        raise  # the host's own, from its own hook
    except Exception as error:  # noqa: BLE001 - its text is for the log alone
        return _error(console, request, error, as_json=as_json)


@dataclass(frozen=True)
class _Sent:
    """An answer that stays in memory until its reader has it, for as long as a feed's may."""

    answer: Response
    sender: Sender

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        await self.sender.send(self.answer, Request(scope, receive), send)


_DEEPEST = 20
"""Slashes in the address of a missing page that is answered by a page, whose links go up to it."""


async def _refuse(console: Console, request: Request) -> Response:
    if request.scope["path"].count("/") > _DEEPEST:  # a page would be many times as long
        return Response(status_code=404, headers=HEADERS)
    return _error(console, request, NotFound("This console has no such page."))


def _reported(error: Exception) -> ZeroEventHubError:
    """Return the error to report; one of another package says only that something failed."""
    match error:
        case ConfigurationError():
            return BadRequest(str(error))
        case TransientError() if not isinstance(error, Unavailable):
            return Unavailable(str(error))
        case ZeroEventHubError():
            return error
        case _:
            return FeedFailure("The console failed in an unexpected way.")


def _told(error: ZeroEventHubError) -> str:
    return "The reason is in the log." if isinstance(error, FeedFailure) else str(error)


def _error(
    console: Console, request: Request, error: Exception, *, as_json: bool = False
) -> Response:
    """Answer with what is wrong, and what to do; log a failure under the answer's id."""
    known, record = _reported(error), str(uuid4())
    if known.status >= FAILED:
        _log.error("The console failed: request_id=%s\n%s", record, describe(error))
    if as_json:
        answer = problem(known, record, console.help_url)
        answer.headers.update(HEADERS)
        return answer
    data = {"message": _told(known), "status": known.status, "record": record}
    template = "sign_in.html" if isinstance(known, Unauthorized) else "error.html"
    answer = _page(console, request, template, data, known.status)
    if isinstance(known, Unauthorized):
        answer.headers["WWW-Authenticate"] = known.challenge
    return answer


def _page(
    console: Console, request: Request, template: str, data: dict[str, Any], status: int = 200
) -> Response:
    """Return a page, with the token that its forms send back, which the browser keeps."""
    csrf = request.cookies.get(_CSRF, "")
    if not _CSRF_FORM.fullmatch(csrf):
        csrf = token_urlsafe(32)
    data |= {"console": console, "csrf": csrf, "signed_in": _COOKIE in request.cookies}
    below = request.scope["path"].removeprefix(request.scope["root_path"])
    answer = page(template, data, base="../" * (below.count("/") - 1), status=status)
    secure = request.url.scheme == "https"
    answer.set_cookie(_CSRF, csrf, path="/", secure=secure, httponly=True, samesite="strict")
    return answer


# Signing in: a browser sends a cookie, and hooks read a header.


def _signed_in(request: Request) -> Request:
    """Return a request with the token of somebody who signed in, as the header that hooks read."""
    token = request.cookies.get(_COOKIE)
    if not token or "authorization" in request.headers:
        return request
    pair = (b"authorization", f"Bearer {token}".encode("latin-1", "replace"))
    headers = [*request.scope["headers"], pair]
    return Request({**request.scope, "headers": headers}, request.receive)


_CSRF = "zeroeventhub_csrf"
_CSRF_FORM = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)


async def read_form(request: Request) -> dict[str, list[str]]:
    """Read a form that one of the console's own pages has sent.

    Raises:
        Forbidden: it came from another site, or without the token of the page.
        BadRequest: it is too long.
    """
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LARGEST_FORM:
            raise BadRequest("The form is too long.")
    form = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)
    (sent, *_), kept = form.pop("csrf", [""]), request.cookies.get(_CSRF, "")
    site = request.headers.get("sec-fetch-site", "same-origin")
    is_own = site == "same-origin" and _CSRF_FORM.fullmatch(kept)
    if not (is_own and compare_digest(sent.encode(), kept.encode())):
        raise Forbidden("The form was not sent by a page of this console: open the page again.")
    return form


def _sign_in_routes(console: Console) -> list[Route]:
    async def ask(request: Request) -> Response:
        return _error(console, request, Unauthorized("Sign in with a token of this feed."))

    async def sign_in(request: Request) -> Response:
        try:
            (token, *_) = (await read_form(request)).get("token", [""])
        except ZeroEventHubError as error:
            return _error(console, request, error)
        answer = RedirectResponse("./", 303, HEADERS)
        # Without a path, the browser sends it to the console alone, whatever is before it.
        options: dict[str, Any] = {"path": None, "httponly": True, "samesite": "strict"}
        options["secure"] = request.url.scheme == "https"
        if token.strip():
            answer.set_cookie(_COOKIE, quote(token.strip(), safe="!#$%&'*+-.^_`|~/="), **options)
        else:
            answer.set_cookie(_COOKIE, "", max_age=0, **options)
        return answer

    return [Route("/sign-in", ask), Route("/sign-in", sign_in, methods=["POST"])]
