"""Hold requests that nobody reads, and requests that wait."""

import asyncio
import socket
from typing import Any

from benchmarks.actors.speaking import say, task, told

BATCH = 100
"""How many requests are made before the server is let answer them: more than a backlog is lost."""


def request(path: str) -> bytes:
    """Return a request for a path."""
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


async def hold(wanted: dict[str, Any]) -> None:
    """Hold requests that nobody reads; then let others wait for a path, and count their answers."""
    loop = asyncio.get_running_loop()
    place = "127.0.0.1", wanted["port"]
    held = []

    async def stall() -> None:
        connection = socket.socket()
        connection.settimeout(0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await loop.sock_connect(connection, place)
        await loop.sock_sendall(connection, request(wanted["path"]))
        held.append(connection)

    for _ in range(0, wanted["readers"], BATCH):
        await asyncio.gather(*(stall() for _ in range(min(BATCH, wanted["readers"]))))
        await asyncio.sleep(0.1)
    say(None)
    waiting = request(await asyncio.to_thread(told))
    codes: list[str] = []

    async def wait_on_and_on() -> None:
        """Ask again as soon as there is an answer, as consumers do."""
        while True:
            reader, writer = await asyncio.open_connection(*place)
            try:
                writer.write(waiting)
                head = await reader.readuntil(b"\r\n\r\n")
                codes.append(head.split(b" ", 2)[1].decode())
                if codes[-1] != "200":
                    await asyncio.sleep(1)  # as it is told to
            except (ConnectionError, asyncio.IncompleteReadError):
                codes.append("cut")
            finally:
                writer.close()

    tasks = []
    for _ in range(0, wanted["waits"], BATCH):
        count = min(BATCH, wanted["waits"])
        tasks += [asyncio.create_task(wait_on_and_on()) for _ in range(count)]
        await asyncio.sleep(0.2)
    say(None)
    while True:
        await asyncio.to_thread(told)
        say({code: codes.count(code) for code in set(codes)})
        codes.clear()


if __name__ == "__main__":
    asyncio.run(hold(task()))
