"""Serve the scenarios over bare sockets, where every byte can be had wrong."""

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from zeroeventhub.conformance.misbehaving.catalogue import all_scenarios, expand
from zeroeventhub.conformance.misbehaving.scenario import Reply, Request, Run, judge
from zeroeventhub.errors import ConfigurationError

__all__ = ["misbehave", "misbehaving"]

HOST = "127.0.0.1"
LONGEST_BODY = 64 * 2**20
_JSON = "application/json"


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

    @property
    def url(self) -> str:
        """Where the scenarios are, without a slash at the end."""
        return f"http://{HOST}:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        """Answer a request as its scenario wants."""
        self.close_connection = True
        with suppress(OSError):
            self._reply().send(self.wfile.write)

    def do_POST(self) -> None:
        """Judge what a client says that it applied."""
        self.close_connection = True
        name, rest = self._split()
        scenario = expand(name.partition("@")[0])
        length = self.headers.get("content-length", "0")
        if scenario is None or rest != "/verdict" or not length.isdigit():
            reply = _json({"detail": "POST what was applied to /{scenario}/verdict."}, 404)
        else:
            body = self.rfile.read(min(int(length), LONGEST_BODY))
            reply = _json(judge(scenario, self.server.runs[name], body))
        with suppress(OSError):
            reply.send(self.wfile.write)

    def log_message(self, *arguments: object) -> None:
        """Say nothing: the client is what is looked at."""

    def _split(self) -> tuple[str, str]:
        path = urlsplit(self.path).path
        name, slash, rest = path.lstrip("/").partition("/")
        return name, slash + rest

    def _reply(self) -> Reply:
        name, rest = self._split()
        if not name:
            return _index()
        # What follows the @ is the client's own word, for a run that starts afresh.
        scenario = expand(name.partition("@")[0])
        if scenario is None:
            return _json({"detail": "There is no such scenario: / lists them."}, 404)
        run = self.server.runs[name]
        if rest == "/expected":
            return _json(scenario.document())
        pairs = parse_qsl(urlsplit(self.path).query, keep_blank_values=True)
        headers = {key.lower(): value for key, value in self.headers.items()}
        headers["x-scenario"] = f"/{name}"
        request = Request(rest, dict(reversed(pairs)), headers, self.server.url)
        return scenario.answer(request, run)


def _json(document: object, status: int = 200) -> Reply:
    body = json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"
    return Reply(body, status, _JSON)


def _index() -> Reply:
    return _json([scenario.document() for scenario in all_scenarios().values()])


def misbehave(port: int, announce: Callable[[str], object]) -> None:
    """Serve the scenarios until SIGINT or SIGTERM.

    Args:
        port: the port; 0 for a free one.
        announce: is told the URL, without a slash at its end, when it listens.

    Raises:
        ConfigurationError: the port is not to be had.
    """
    with _Server(port) as server:
        announce(server.url)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


@contextmanager
def misbehaving(port: int = 0) -> Iterator[str]:
    """Serve the scenarios in a thread, and yield their URL without a slash at its end.

    Raises:
        ConfigurationError: the port is not to be had.
    """
    with _Server(port) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server.url
        finally:
            server.shutdown()
            thread.join()
