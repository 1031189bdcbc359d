"""A publisher that misbehaves on purpose, scenario by scenario, to test clients.

It writes to the bare socket, so that every byte can be wrong.
"""

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import zeroeventhub.conformance.scenarios  # noqa: F401 - registers the scenarios
from zeroeventhub.conformance.answer import exact
from zeroeventhub.conformance.scripted_feed import Reply, Request, Run, Scenario, all_scenarios
from zeroeventhub.errors import ConfigurationError

HOST = "127.0.0.1"
LONGEST_BODY = 64 * 2**20


def expand(name: str) -> Scenario | None:
    """Return the scenario with a name, which may end in an offset; None if there is none."""
    known = all_scenarios()
    if name in known and known[name].sizes is None:
        return known[name]
    family, _, digits = name.rpartition("-")
    sizes = known[family].sizes if family in known else None
    if sizes is None or not (digits.isascii() and digits.isdigit() and int(digits) < sizes):
        return None
    sentence = known[family].sentence.replace("so many", f"{int(digits)} of {sizes}")
    answer = partial(known[family].answer, offset=int(digits))
    return replace(known[family], name=name, sentence=sentence, answer=answer, sizes=None)


def judge(scenario: Scenario, run: Run, body: bytes) -> dict[str, Any]:
    """Judge a client by its requests, and by what it applied.

    The body has that as NDJSON: {"partition":0,"data":…} for each event, in order, and
    {"error":"…"} at the end if the client ended in an error.
    """
    reasons = list(run.faults)
    applied: dict[int, list[Any]] = defaultdict(list)
    sequence = []
    error = None
    try:
        for line in body.split(b"\n"):
            document = _read(line) if line.strip() else {}
            if "data" in document:
                partition = int(document.get("partition", 0))
                applied[partition].append(document["data"])
                sequence.append(partition)
            error = document.get("error", error)
    except (ArithmeticError, ValueError, TypeError, RecursionError, AttributeError) as problem:
        reason = f"The report of what was applied cannot be read: {problem}"
        return {"passed": False, "reasons": [reason]}
    for partition in sorted({*scenario.applied, *applied}):
        expected = [_read(data.encode()) for data in scenario.applied.get(partition, ())]
        got = applied[partition]
        short = error is not None and scenario.may_fail and expected[: len(got)] == got
        if got != expected and not short:
            reasons.append(
                f"Partition {partition}: {len(expected)} events should have been applied, "
                f"but {len(got)} were, or different ones."
            )
    if (error is not None) != (scenario.error is not None) and not scenario.may_fail:
        wanted = scenario.error or "none"
        reasons.append(f"The client should have ended with this error: {wanted}.")
    known = [partition for partition in sequence if partition in scenario.sequence]
    if known != sorted(known, key=scenario.sequence.index):
        reasons.append("The partitions were applied in another sequence.")
    return {"passed": not reasons, "reasons": reasons}


def _read(line: bytes) -> Any:
    return json.loads(line, parse_float=exact)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 100

    def __init__(self, port: int) -> None:
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise ConfigurationError(
                f"Cannot listen on port {port}: {error.strerror}. Choose another --port."
            ) from None
        self.runs: dict[str, Run] = defaultdict(Run)
        self.url = f"http://{HOST}:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        """Answer a request as its scenario says."""
        name, rest, scenario = self._find()
        if not name:
            reply = _json([scenario.document() for scenario in all_scenarios().values()])
        elif scenario is None:
            reply = _json({"detail": "There is no such scenario: / lists them."}, 404)
        elif rest == "/expected":
            reply = _json(scenario.document())
        else:
            pairs = parse_qsl(urlsplit(self.path).query, keep_blank_values=True)
            request = Request(rest, dict(reversed(pairs)), f"{self.server.url}/{name}")
            reply = scenario.answer(request, self.server.runs[name])
        self._send(reply)

    def do_POST(self) -> None:
        """Judge what a client reports to have applied."""
        name, rest, scenario = self._find()
        length = self.headers.get("content-length", "")
        if scenario is None or rest != "/verdict":
            reply = _json({"detail": "POST what was applied to /{scenario}/verdict."}, 404)
        elif not length.isdigit():  # a body in chunks would count as one without events
            reply = _json({"detail": "POST it with a Content-Length, not in chunks."}, 411)
        else:
            body = self.rfile.read(min(int(length), LONGEST_BODY))
            reply = _json(judge(scenario, self.server.runs[name], body))
        self._send(reply)

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""

    def _find(self) -> tuple[str, str, Scenario | None]:
        """Return the name of a run, the path after it, and its scenario."""
        name, slash, rest = urlsplit(self.path).path.lstrip("/").partition("/")
        # A client appends "@" and any word to start a new run.
        return name, slash + rest, expand(name.partition("@")[0])

    def _send(self, reply: Reply) -> None:
        self.close_connection = True
        with suppress(OSError):
            reply.send(self.wfile.write)


def _json(document: object, status: int = 200) -> Reply:
    body = json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"
    return Reply(body, status, "application/json")


@contextmanager
def misbehaving(port: int = 0) -> Iterator[str]:
    """Serve the scenarios in a thread, and yield their URL without a slash at its end.

    Port 0 takes a free one.

    Raises:
        ConfigurationError: the port is in use.
    """
    with _Server(port) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server.url
        finally:
            server.shutdown()
            thread.join()
