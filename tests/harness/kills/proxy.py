"""A wire between consumer and database that cuts the line around a COMMIT."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy import URL, make_url

LATEST = 10
"""Seconds that a database takes for a COMMIT, at most."""

PORTS = {"postgresql": 5432, "mariadb": 3306, "mysql": 3306}


class CommitProxy:
    """Forward what consumer and database say, and cut the line around some COMMITs.

    Args:
        url: the database.
        seed: of the dice that choose.
        share: of all COMMITs, how many meet their fate.
    """

    def __init__(self, url: str, seed: str, share: float) -> None:
        self._upstream = make_url(url)
        self._dice = random.Random(seed)
        self._share = share
        self.fates: Counter[str] = Counter()

    @contextmanager
    def listening(self) -> Iterator[str]:
        """Listen in a thread; yield the URL of the database through this proxy."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            server = asyncio.run_coroutine_threadsafe(self._serve(), loop).result(10)
            port = server.sockets[0].getsockname()[1]
            yield self._through(port).render_as_string(hide_password=False)
        finally:
            asyncio.run_coroutine_threadsafe(_close(server), loop).result(10)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def _through(self, port: int) -> URL:
        url = self._upstream.difference_update_query(["host", "port", "unix_socket"])
        url = url.set(host="127.0.0.1", port=port)
        if url.get_backend_name() == "postgresql":
            url = url.update_query_dict({"sslmode": "disable", "gssencmode": "disable"})
        return url

    async def _serve(self) -> asyncio.Server:
        return await asyncio.start_server(self._join, "127.0.0.1", 0)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.CancelledError):
            theirs, to_them = await self._connect()
            answers = _Answers(theirs, writer)
            forth = asyncio.create_task(self._forth(reader, to_them, answers))
            back = asyncio.create_task(answers.forward())
            try:
                await asyncio.wait([forth, back], return_when=asyncio.FIRST_COMPLETED)
                if answers.silent:
                    await forth
            finally:
                back.cancel()
                forth.cancel()
                await asyncio.gather(forth, back, return_exceptions=True)
                for each in (writer, to_them):
                    each.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        url = self._upstream
        if (path := url.query.get("unix_socket")) is not None:
            return await asyncio.open_unix_connection(path)
        port = url.port or PORTS[url.get_backend_name()]
        host = url.host or url.query.get("host") or "127.0.0.1"
        if host.startswith("/"):
            return await asyncio.open_unix_connection(Path(host) / f".s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    async def _forth(
        self,
        ours: asyncio.StreamReader,
        to_them: asyncio.StreamWriter,
        answering: "_Answers",
    ) -> None:
        """Forward what the consumer says, until a COMMIT meets its fate."""
        while data := await ours.read(65536):
            fate = self._fate() if b"COMMIT" in data else None
            if fate == "request lost":
                return
            if fate == "reply lost":
                answering.hush()
            to_them.write(data)
            await to_them.drain()
            if fate == "reply lost":
                await answering.hushed()
                return

    def _fate(self) -> str | None:
        if self._dice.random() >= self._share:
            return None
        fate = self._dice.choice(["request lost", "reply lost"])
        self.fates[fate] += 1
        return fate


class _Answers:
    """Forward what the database says, until it is hushed."""

    def __init__(self, theirs: asyncio.StreamReader, to_us: asyncio.StreamWriter) -> None:
        self._theirs = theirs
        self._to_us = to_us
        self.silent = False
        self._lost = asyncio.Event()

    async def forward(self) -> None:
        """Forward until the database or the fate ends it."""
        while data := await self._theirs.read(65536):
            if self.silent:
                self._lost.set()
                return
            self._to_us.write(data)
            await self._to_us.drain()

    def hush(self) -> None:
        """Forward nothing any more."""
        self.silent = True

    async def hushed(self) -> None:
        """Wait until an answer was lost, or will never come."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._lost.wait(), LATEST)


async def _close(server: asyncio.Server) -> None:
    server.close()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.sleep(0)
