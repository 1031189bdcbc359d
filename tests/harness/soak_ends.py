"""End servers while readers wait, stream, or do not read: row R14 of the scoreboard."""

import tempfile
from contextlib import ExitStack
from pathlib import Path

import httpx

from harness.faults.findings import Findings
from harness.readers import head_of, page_url
from harness.stalled import answer, ask, asking
from harness.uvicorn_process import Server, uvicorn

__all__ = ["SOON", "ended"]

SOON = 10.0
"""Seconds in which a server has to be gone."""

WAITING, STREAMING, STALLED = 50, 5, 3


def ended(seed: int) -> Findings:
    """End one server with readers of all kinds, of which the seed says which are there."""
    found = Findings()
    options = ["--timeout-graceful-shutdown", "5"]
    with tempfile.TemporaryDirectory() as folder, uvicorn(Path(folder), *options) as server:
        found.complaints += [f"seed {seed}: {what}" for what in _complaints(server, seed)]
    found.counts["ends"] += 1
    return found


def _complaints(server: Server, seed: int) -> list[str]:
    orders, complaints = f"{server.url}/orders", []
    with ExitStack() as stack:
        waits = page_url(orders, cursor=head_of(orders), wait=30)
        waiting = stack.enter_context(asking(waits, WAITING if seed & 1 else 1))
        if seed & 2:
            streams = f"{orders}/server-sent-events"
            for stream in stack.enter_context(asking(streams, STREAMING)):
                stream.recv(65536)
        for _ in range(STALLED if seed & 4 else 0):
            stack.enter_context(ask(page_url(f"{server.url}/large"), room=4096))
        httpx.get(server.url)
        seconds = server.end()
        if seconds >= SOON:
            complaints.append(f"the server was gone after {seconds:.1f} s")
        statuses = {answer(connection)[0] for connection in waiting}
        if statuses != {200}:
            complaints.append(f"who waited was answered with {statuses}")
        # uvicorn logs the answers that it cuts, as those of readers that do not read.
        if not seed & 4 and "Traceback" in server.log.read_text():
            complaints.append(server.log.read_text())
    return complaints
