"""The points of a consumer's life at which something may happen to it."""

import os
import random
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from multiprocessing.connection import Connection
from typing import Any

import httpx
from sqlalchemy import Engine, NullPool, create_engine, event, text
from sqlalchemy.exc import DBAPIError


@dataclass
class Points:
    """Count the points that a process passes; strike at one of them, and again within each gap."""

    at: int | None
    strike: Callable[[], object]
    counting: bool = True
    gap: int = 0
    most: int = 1
    dice: random.Random = field(default_factory=lambda: random.Random(0))
    strikes: int = 0
    passed: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def touch(self, *_: Any, **__: Any) -> None:
        with self.lock:
            if not self.counting:
                return
            self.passed += 1
            struck = self.at is not None and self.passed >= self.at
            if struck:
                self.strikes += 1
                going_on = self.gap and self.strikes < self.most
                self.at = self.passed + self.dice.randint(1, self.gap) if going_on else None
        if struck:
            self.strike()

    def watch(self, engine: Engine) -> None:
        """Take the moments before and after every statement and every end of a transaction."""
        if self.at is None:
            return
        for moment in ("before_cursor_execute", "after_cursor_execute", "connect"):
            event.listen(engine, moment, self.touch)
        for name in ("do_commit", "do_rollback"):
            setattr(engine.dialect, name, self._around(getattr(engine.dialect, name)))

    def watch_http(self, http: httpx.Client) -> None:
        """Take the moments before every request and after the head of every answer."""
        http.event_hooks = {"request": [self.touch], "response": [self._hear]}

    def watch_async_http(self, http: httpx.AsyncClient) -> None:
        """Take the moments before every request and after the head of every answer, in tasks."""

        async def touch(_: httpx.Request) -> None:
            self.touch()

        async def hear(response: httpx.Response) -> None:
            self._hear(response)

        http.event_hooks = {"request": [touch], "response": [hear]}

    def _hear(self, response: httpx.Response) -> None:
        self.counting = self.counting or response.url.path.endswith("/events")
        self.touch()

    def _around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def around(*arguments: Any) -> Any:
            self.touch()
            try:
                return function(*arguments)
            finally:
                self.touch()

        return around


def kill() -> None:
    """Kill this process, without a word."""
    os.kill(os.getpid(), signal.SIGKILL)


def freeze(line: Connection) -> None:
    """Say so, and stop this process until it is let go on."""
    line.send(None)
    os.kill(os.getpid(), signal.SIGSTOP)


_TERMINATING = threading.Lock()


def terminate(url: str, dice: random.Random) -> None:
    """Let the server end at least one connection to a database, as dice choose."""
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    sessions, end = _SESSIONS[engine.dialect.name]
    # One after the other: two that strike at once would end each other's connections.
    with _TERMINATING, engine.connect() as connection:
        found = sorted(connection.scalars(text(sessions)))
        for session in dice.sample(found, dice.randint(1, len(found))) if found else ():
            # It may have ended by itself in the meantime.
            with suppress(DBAPIError):
                connection.execute(text(end), {"session": session})


_OF_POSTGRESQL = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
    "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
)
_OF_MARIADB = (
    "SELECT id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()"
)
_SESSIONS = {
    "postgresql": (_OF_POSTGRESQL, "SELECT pg_terminate_backend(:session)"),
    "mariadb": (_OF_MARIADB, "KILL CONNECTION :session"),
    "mysql": (_OF_MARIADB, "KILL CONNECTION :session"),
}
