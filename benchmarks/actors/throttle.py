"""Stand before a publisher, and send what it answers only so fast on each connection."""

import asyncio
import time
from typing import Any

from benchmarks.actors.speaking import say, task

PIECE = 64 * 1024


async def pass_on(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, rate: float | None
) -> None:
    """Pass on bytes until there are no more.

    Args:
        source: where they come from.
        target: where they go.
        rate: bytes of a second; None for as fast as they are taken.
    """
    free_at = 0.0
    while data := await source.read(PIECE):
        target.write(data)
        await target.drain()
        if rate is not None:
            # What was not used is not saved up.
            free_at = max(free_at, time.monotonic()) + len(data) / rate
            await asyncio.sleep(free_at - time.monotonic())
    target.close()


async def serve(wanted: dict[str, Any]) -> None:
    """Pass connections on until the process is ended."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, questions = await asyncio.open_connection("127.0.0.1", wanted["port"])
        await asyncio.gather(
            pass_on(reader, questions, None),
            pass_on(answers, writer, wanted["rate"]),
            return_exceptions=True,  # one side may hang up before the other
        )

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    say({"port": server.sockets[0].getsockname()[1]})
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(task()))
