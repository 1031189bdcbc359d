"""What each reader takes of a feed now, and may take."""

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Literal

from zeroeventhub.errors import TooManyRequests
from zeroeventhub.server.principal import Principal, Quota

__all__ = ["Counted", "Quotas"]

_FEW = 64
"""How many readers are kept before any is forgotten."""

_SOON = 1.0
"""Seconds after which to come again, where nobody knows when there will be room."""


@dataclass(slots=True)
class _Account:
    """Hold what a reader takes.

    Attributes:
        in_flight: its requests that are under way.
        waiting: those of them that wait at the head.
        due: when the next request would be due, if all came at the rate: what is allowed lies no
            further ahead of the clock than a burst.
    """

    in_flight: int = 0
    waiting: int = 0
    due: float = 0.0

    def is_settled(self, now: float) -> bool:
        """Tell whether it makes no difference to forget it."""
        return not self.in_flight and self.due <= now


class Counted:
    """Count a request until its end, or until this context is left.

    Thousands wait at once: generators would take ten times the room.

    Args:
        account: the reader's.
        among: the name of the requests that it is one of.
    """

    __slots__ = ("_account", "_among")

    def __init__(self, account: _Account, among: Literal["in_flight", "waiting"]) -> None:
        self._account = account
        self._among = among
        self._add(1)

    def __enter__(self) -> None:
        """Go on; it is counted already."""

    def __exit__(self, *_: object) -> None:
        """Count it no longer."""
        self.end()

    def end(self) -> None:
        """Count it no longer."""
        self._add(-1)

    def _add(self, number: int) -> None:
        setattr(self._account, self._among, getattr(self._account, self._among) + number)


class Quotas:
    """Keep each reader of a feed to its quota; one instance a feed and process.

    Args:
        default: of readers who have none of their own.
        clock: tells the time; it never goes back.
    """

    def __init__(self, default: Quota | None, clock: Callable[[], float] = monotonic) -> None:
        self._default = default or Quota()
        self._clock = clock
        self._accounts: dict[str, _Account] = {}
        self._crowd = _FEW

    def __len__(self) -> int:
        """Return how many readers are remembered."""
        return len(self._accounts)

    def admitted(self, principal: Principal) -> Counted:
        """Count a request for as long as it is under way.

        Raises:
            TooManyRequests: it would be one too many.
        """
        quota, account = principal.quota or self._default, self._account(principal)
        if quota.in_flight is not None and account.in_flight >= quota.in_flight:
            raise TooManyRequests(
                "Too many of your requests are under way: wait for their answers.",
                retry_after=_SOON,
            )
        if quota.rate is not None and quota.burst is not None:
            self._take_turn(account, quota.rate, quota.burst)
        return Counted(account, "in_flight")

    def waiting(self, principal: Principal) -> Counted:
        """Count a request that is under way for as long as it waits at the head.

        Raises:
            TooManyRequests: it would be one too many.
        """
        quota, account = principal.quota or self._default, self._account(principal)
        if quota.waiters is not None and account.waiting >= quota.waiters:
            raise TooManyRequests(
                "Too many of your requests wait for something to read: ask without waiting.",
                retry_after=_SOON,
            )
        return Counted(account, "waiting")

    def _take_turn(self, account: _Account, rate: float, burst: int) -> None:
        """Let a request through that comes no earlier than the rate and the burst allow."""
        # The generic cell rate algorithm: a bucket of tokens that is one number.
        now, interval = self._clock(), 1 / rate
        due = max(account.due, now)
        early = due - now - (burst - 1) * interval
        # No more than the clock's own noise: the burst-th request of a burst is let through.
        if early > interval * 1e-6:
            raise TooManyRequests("You ask more often than you may: slow down.", retry_after=early)
        account.due = due + interval

    def _account(self, principal: Principal) -> _Account:
        account = self._accounts.get(principal.name)
        if account is None:
            if len(self._accounts) >= self._crowd:
                self._forget()
            account = self._accounts[principal.name] = _Account()
        return account

    def _forget(self) -> None:
        """Forget those of whom nothing is left; it costs little, for the crowd has to double."""
        now = self._clock()
        self._accounts = {
            name: account for name, account in self._accounts.items() if not account.is_settled(now)
        }
        self._crowd = max(_FEW, 2 * len(self._accounts))
