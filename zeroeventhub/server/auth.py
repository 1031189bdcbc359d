"""Authorization: what a reader may see, what a writer may append, and their quotas."""

import math
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from inspect import isawaitable, iscoroutinefunction
from time import monotonic
from typing import Any, Literal, NoReturn, TypeAlias, TypeGuard, cast

import anyio
import anyio.to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from zeroeventhub.errors import (
    ConfigurationError,
    FeedFailure,
    Forbidden,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from zeroeventhub.new_events import NewEvent
from zeroeventhub.protocol import HIGHEST_PARTITION, NOTHING, TypeFilter, is_name

_LONGEST_NAME = 256


def _is_collection(given: Any, kind: type) -> TypeGuard[Collection[Any]]:
    """Return whether something is a collection of a type, which a text is not."""
    is_some = isinstance(given, Collection) and not isinstance(given, str)
    return is_some and all(isinstance(one, kind) for one in given)


@dataclass(frozen=True, kw_only=True)
class Quota:
    """The limits of one reader of one feed, in each process; None is no limit.

    A reader with a name and without a quota has 1,000 requests in flight at most.

    Example:
        quota = Quota(in_flight=10, rate=100)
        routes = feed_routes("/orders", feed, engine, quota=quota)

    Attributes:
        in_flight: how many of its requests may be in flight at once, 1 or more; an open stream
            counts as one.
        waiters: how many of these may wait at the head, 1 or more.
        rate: how many requests per second it may make in the long run, more than 0.
        burst: how many it may make at once after a pause, 1 or more; only with a `rate`. By default
            the number that `rate` allows in a second.

    Raises:
        ConfigurationError: a limit is out of its range, or a burst has no rate.
    """

    in_flight: int | None = None
    waiters: int | None = None
    rate: float | None = None
    burst: int | None = None

    def __post_init__(self) -> None:
        """Check the limits."""
        for name in ("in_flight", "waiters", "burst"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ConfigurationError(f"Quota.{name} has to be a whole number above zero.")
        if self.rate is None:
            if self.burst is not None:
                raise ConfigurationError("A Quota with a burst needs a rate as well.")
        elif type(self.rate) not in {int, float} or not 0 < self.rate < math.inf:
            raise ConfigurationError("Quota.rate has to be a number above zero.")
        elif self.burst is None:
            object.__setattr__(self, "burst", max(1, math.ceil(self.rate)))


@dataclass(frozen=True, kw_only=True)
class AppendRight:
    """What a principal may append to a log: each attribute that is not None has to allow the event.

    Example:
        billing = Principal(name="billing", append=AppendRight(types={"invoice.sent"}))
        authorize = bearer_tokens({os.environ["BILLING_TOKEN"]: billing})
        routes = feed_routes("/events", log.feed(), engine, authorize=authorize)

    Attributes:
        types: the types of events that it may append, by their exact names; None for all.
        keys: the keys whose events it may append, which excludes events without a key; None for
            all.
        partitions: the partitions that it may append to; None for all.

    Raises:
        ConfigurationError: an attribute is not a collection of texts, or of whole numbers.
    """

    types: Collection[str] | None = None
    keys: Collection[str] | None = None
    partitions: Collection[int] | None = None

    def __post_init__(self) -> None:
        """Refuse members of another type."""
        for name, kind in (("types", str), ("keys", str), ("partitions", int)):
            given: object = getattr(self, name)
            if given is not None and not _is_collection(given, kind):
                members = "whole numbers" if kind is int else "texts"
                raise ConfigurationError(
                    f"The {name} of an AppendRight are a collection of {members}, or None for all."
                )

    def allows(self, event: NewEvent) -> bool:
        """Return whether the types and the keys allow an event, in whatever partition."""
        return (self.types is None or event.type in self.types) and (
            self.keys is None or event.key in self.keys
        )


@dataclass(frozen=True, kw_only=True)
class Principal:
    """A reader or a writer, and what it may see and append.

    Example:
        billing = Principal(name="billing", partitions={0, 1}, types={"order.paid"})
        authorize = bearer_tokens({os.environ["BILLING_TOKEN"]: billing})
        routes = feed_routes("/orders", feed, engine, authorize=authorize)

    Attributes:
        name: the reader's name in logs, in metrics and for its quota, one line of at most 256
            characters that does not end with a space; empty for a feed without names.
        partitions: the partitions that it may read; None for all; an empty collection for none.
        types: the types of events that it may see, by name, or a TypeFilter, which may exclude
            some; None for all. Readers of all types, or of all but some, also see events without a
            type.
        quota: its limits; None for the quota of the feed's routes.
        append: what it may append over HTTP; None for nothing.

    Raises:
        ConfigurationError: the name is not one line of text, the number of a partition is out of
            range, or an attribute has another type.
    """

    name: str
    partitions: Collection[int] | None = None
    types: Collection[str] | TypeFilter | None = None
    quota: Quota | None = None
    append: AppendRight | None = None

    def __post_init__(self) -> None:
        """Convert collections to sets, and check the values."""
        name: object = self.name
        if not isinstance(name, str) or (name and not is_name(name, _LONGEST_NAME)):
            raise ConfigurationError(
                f"The name of a Principal is one line of at most {_LONGEST_NAME} characters, and "
                "does not end with a space, which MariaDB and MySQL overlook."
            )
        partitions: object = self.partitions
        if partitions is not None:
            if not isinstance(partitions, Collection) or not all(
                type(number) is int and 0 <= number <= HIGHEST_PARTITION for number in partitions
            ):
                raise ConfigurationError(
                    f"The partitions of a Principal are a collection of whole numbers from 0 to "
                    f"{HIGHEST_PARTITION}, or None for all."
                )
            object.__setattr__(self, "partitions", frozenset(partitions))
        types: object = self.types
        if types is not None and not isinstance(types, TypeFilter):
            if not _is_collection(types, str):
                raise ConfigurationError(
                    "The types of a Principal are a collection of names, a TypeFilter, or None "
                    "for all."
                )
            object.__setattr__(self, "types", TypeFilter({*types}) if types else NOTHING)
        if self.quota is not None and not isinstance(self.quota, Quota):
            raise ConfigurationError("The quota of a Principal is a Quota.")
        if self.append is not None and not isinstance(self.append, AppendRight):
            raise ConfigurationError("What a Principal may append is an AppendRight, or None.")

    def may_read(self, partition: int) -> bool:
        """Return whether it may read a partition."""
        return self.partitions is None or partition in self.partitions

    def narrowed(self, types: TypeFilter | None) -> TypeFilter | None:
        """Return a request's filter restricted to the types that it may see; None for all."""
        own = cast("TypeFilter | None", self.types)
        if own is None:
            return types
        return own if types is None else own.joined(types)


EVERYBODY = Principal(name="", append=AppendRight())
"""The principal of all requests to a feed without a hook."""

EVERY_READER = Principal(name="")
"""The principal of all requests to a feed with the hook `everybody`."""

Authorize = Callable[[Request], Principal | Awaitable[Principal]]
"""Return the principal of a request, or raise Unauthorized, Forbidden or an HTTPException."""

SCOPE_KEY = "zeroeventhub.authorize"
"""Where a FeedAuthorization puts its hook in the scope of a request."""


async def everybody(request: Request) -> Principal:  # noqa: ARG001 - a hook takes it
    """Let everybody read everything, and append nothing: the hook of a public feed."""
    return EVERY_READER


async def deny(request: Request) -> NoReturn:  # noqa: ARG001 - a hook takes it
    """Refuse every request."""
    raise Unauthorized("This feed refuses every reader: it has no `authorize` hook yet.")


class FeedAuthorization:
    """Authorize the readers of all feeds below, except feeds with their own hook.

    A middleware for applications of Starlette and FastAPI, and for parts of them:
    `Starlette(routes=…, middleware=[Middleware(FeedAuthorization)])`. Without a hook it refuses
    every request, so that no feed is public because a hook was forgotten.

    Example:
        authorize = bearer_tokens({os.environ["BILLING_TOKEN"]: "billing"})
        middleware = [Middleware(FeedAuthorization, authorize=authorize)]
        app = Starlette(routes=feed_routes("/orders", feed, engine), middleware=middleware)

    Args:
        app: the wrapped application; routes other than feeds ignore the hook.
        authorize: the hook; see `feed_routes`.

    Raises:
        ConfigurationError: the hook cannot be called.
    """

    def __init__(self, app: ASGIApp, authorize: Authorize = deny) -> None:
        self._app = app
        self._authorize = _expect_callable(authorize)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the hook to the feeds in the scope."""
        # In place, so that outer applications see what inner ones write into it, such as the route.
        scope[SCOPE_KEY] = self._authorize
        await self._app(scope, receive, send)


def _expect_callable(authorize: Authorize) -> Authorize:
    if not callable(cast("object", authorize)):
        raise ConfigurationError("authorize is a function that takes a request.")
    return authorize


_SHORTEST_TOKEN = 16

_TOKEN_FORM = re.compile(rf"[A-Za-z0-9._~+/-]{{{_SHORTEST_TOKEN},}}=*", re.ASCII)

_HASH_FORM = re.compile(r"sha256:([0-9a-f]{64})", re.ASCII)


def bearer_tokens(
    tokens: Mapping[str, str | Principal],
) -> Callable[[Request], Awaitable[Principal]]:
    """Return a hook for `authorize` that accepts bearer tokens (RFC 6750).

    Use random tokens, such as those of `secrets.token_urlsafe()`, and keep them out of the source.
    To replace a token, let the old and the new one have the same name for a while. The hook stores
    only digests of the tokens.

    Args:
        tokens: by token, the name of a reader that may see everything, or a Principal. A token has
            16 characters or more. It may be given as its SHA-256, as in "sha256:9f86…", so that it
            is stored nowhere.

    Raises:
        ConfigurationError: a token is too short, or has characters that are not allowed.
    """
    known: list[tuple[bytes, Principal]] = []
    for token, reader in tokens.items():
        text = token if isinstance(cast("object", token), str) else ""
        if hashed := _HASH_FORM.fullmatch(text):
            digest = bytes.fromhex(hashed[1])
        elif _TOKEN_FORM.fullmatch(text):
            digest = sha256(token.encode()).digest()
        else:
            # The token is not repeated: it may be a real one followed by a blank.
            raise ConfigurationError(
                f"A bearer token has at least {_SHORTEST_TOKEN} letters, digits and characters of "
                "._~+/-, and may end with =: use secrets.token_urlsafe()."
            )
        principal = reader if isinstance(reader, Principal) else Principal(name=reader)
        known.append((digest, principal))

    async def authorize(request: Request) -> Principal:
        shown = request.headers.getlist("authorization")
        scheme, _, token = shown[0].partition(" ") if len(shown) == 1 else ("", "", "")
        if scheme.lower() != "bearer":
            raise Unauthorized("Send one bearer token, in one header Authorization.")
        found, shown_digest = None, sha256(token.strip(" ").encode()).digest()
        for known_digest, principal in known:  # no early exit: its time would show which matched
            if compare_digest(known_digest, shown_digest):
                found = principal
        if found is None:
            challenge = 'Bearer error="invalid_token"'
            raise Unauthorized("The bearer token is not one of this feed.", challenge=challenge)
        return found

    return authorize


_DEFAULT_QUOTA = Quota(in_flight=1_000)
"""The quota of a principal with a name if neither it nor the feed has a quota."""

_NO_QUOTA = Quota()

_FEWEST = 64
"""How many accounts there are before idle ones are dropped."""

_Requests: TypeAlias = Literal["in_flight", "waiters"]

_REFUSALS = {
    "in_flight": "Too many of your requests are under way: wait for their answers.",
    "waiters": "Too many of your requests wait for something to read: ask without waiting.",
}


@dataclass(slots=True)
class Account:
    """The use of a quota by a principal."""

    in_flight: int = 0  # its requests in flight
    waiters: int = 0  # those of them that wait at the head
    # When the next request would be due at the rate; a burst moves it ahead of the clock.
    due: float = 0.0


@dataclass
class Quotas:
    """Enforce the quota of each principal; one instance per feed and process."""

    default: Quota | None  # of principals without their own
    accounts: dict[str, Account] = field(default_factory=dict)  # by the names of principals
    _drop_above: int = _FEWEST

    def count(self, principal: Principal, among: _Requests = "in_flight") -> Account:
        """Count a request that is in flight, or waits at the head.

        Returns:
            The account; the caller subtracts the request from it in the end.

        Raises:
            TooManyRequests: the quota is used up.
        """
        quota = principal.quota or self.default or (_DEFAULT_QUOTA if principal.name else _NO_QUOTA)
        account, most = self._account(principal.name), getattr(quota, among)
        if most is not None and getattr(account, among) >= most:
            raise TooManyRequests(_REFUSALS[among], retry_after=1)
        if among == "in_flight" and quota.rate is not None and quota.burst is not None:
            # The generic cell rate algorithm: a bucket of tokens that is one number.
            now, interval = monotonic(), 1 / quota.rate
            due = max(account.due, now)
            early = due - now - (quota.burst - 1) * interval
            # With a tolerance for rounding, so that the last request of a burst is accepted.
            if early > interval * 1e-6:
                text = "You send more requests per second than you may: slow down."
                raise TooManyRequests(text, retry_after=early)
            account.due = due + interval
        setattr(account, among, getattr(account, among) + 1)
        return account

    def _account(self, name: str) -> Account:
        account = self.accounts.get(name)
        if account is None:
            if len(self.accounts) >= self._drop_above:
                # Drop idle accounts; amortized, as this runs only when their number has doubled.
                now, known = monotonic(), self.accounts.items()
                self.accounts = {name: one for name, one in known if one.in_flight or one.due > now}
                self._drop_above = max(_FEWEST, 2 * len(self.accounts))
            account = self.accounts[name] = Account()
        return account


THREADS = 4
"""How many threads of a feed run sync hooks."""


class Access:
    """Identify the principals of requests with a hook.

    Args:
        authorize: the feed's own hook; None to call the hook of the application around the feed,
            or to accept every reader if the application has none.
        patience: seconds that a hook may take.

    Raises:
        ConfigurationError: the hook cannot be called.
    """

    def __init__(self, authorize: Authorize | None, *, patience: float) -> None:
        self.hook = None if authorize is None else _expect_callable(authorize)
        self._patience = patience
        self._threads = anyio.CapacityLimiter(THREADS)

    async def identify(self, request: Request, hook: Authorize) -> Principal:
        """Call the hook; anything but a Principal is a refusal."""
        with anyio.move_on_after(self._patience) as waiting:
            try:
                if iscoroutinefunction(hook) or iscoroutinefunction(type(hook).__call__):
                    found = hook(request)
                else:
                    # It may wait for a database or another service.
                    found = await anyio.to_thread.run_sync(
                        hook, request, limiter=self._threads, abandon_on_cancel=True
                    )
                if isawaitable(found):
                    found = await found
            except (HTTPException, Unauthorized, Forbidden, Unavailable):
                raise
            except Exception as error:
                text = "The hook authorize failed, so the request is refused."
                raise FeedFailure(text) from error
        # A timeout does not stop a hook in a thread; its late result is ignored.
        if waiting.cancel_called:
            raise Unavailable("The reader cannot be identified just now.", retry_after=1)
        if not isinstance(found, Principal):
            raise FeedFailure(
                f"The hook authorize returned {type(found).__name__}, so the request is refused: "
                "it has to return a Principal, or raise Unauthorized or Forbidden."
            )
        return found
