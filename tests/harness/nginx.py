"""A real nginx of a test's own: one that this machine has, or a container's."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from harness.databases import PROGRAMS, give_up, has_engine
from harness.waiting import until

__all__ = ["Nginx", "example", "nginx", "reserved_port"]

EXAMPLES = Path(__file__).parents[2] / "examples"

PATIENCE = 60
"""Seconds that nginx may take for anything."""

IMAGE = "nginx:1.28"

MAIN = """
{user}
worker_processes 1;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/test.conf;
}}
"""


class Running(Protocol):
    """An nginx that runs, wherever."""

    def kill(self, name: signal.Signals) -> None:
        """Send a signal to its first process, or kill all of them."""

    def wait(self) -> None:
        """Wait until all have ended."""


class Nginx:
    """Start, restart, and kill an nginx.

    Args:
        folder: holds its configuration, and all that it writes.
        port: where it listens.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self._port = port
        self._running: Running | None = None

    def start(self) -> None:
        """Start it, and wait until it listens."""
        program = shutil.which("nginx", path=PROGRAMS)
        command = ["-p", f"{self._folder}", "-c", f"{self._folder}/nginx.conf"]
        command += ["-e", f"{self._folder}/error.log", "-g", "daemon off;"]
        if program is not None:
            self._running = _Local([program, *command])
        elif has_engine():
            self._running = _Contained(self._folder, command)
        else:
            give_up("no nginx is to be had: apt-get install nginx-light, or start Docker")
        until(self._listens, f"nginx listens: {self.log}", PATIENCE)

    def reload(self) -> None:
        """Let it read its configuration anew, as after a renewed certificate."""
        self._running.kill(signal.SIGHUP)

    def kill(self) -> None:
        """Kill all of its processes."""
        self._running.kill(signal.SIGKILL)
        self._running.wait()

    @property
    def log(self) -> str:
        """What it has complained about."""
        path = self._folder / "error.log"
        return path.read_text() if path.exists() else ""

    def _listens(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self._port)) == 0


class _Local:
    def __init__(self, command: list[str]) -> None:
        # Its workers are killed with it: alone, they would go on.
        self._process = subprocess.Popen(
            command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kill(self, name: signal.Signals) -> None:
        send = os.killpg if name is signal.SIGKILL else os.kill
        send(self._process.pid, name)

    def wait(self) -> None:
        self._process.wait(PATIENCE)


class _Contained:
    def __init__(self, folder: Path, command: list[str]) -> None:
        from testcontainers.core.container import DockerContainer

        container = DockerContainer(IMAGE, network_mode="host", user=os.geteuid())
        container = container.with_volume_mapping(str(folder), str(folder), mode="rw")
        self._container = container.with_command(["nginx", *command]).start()

    def kill(self, name: signal.Signals) -> None:
        self._container.get_wrapped_container().kill(name.name)

    def wait(self) -> None:
        self._container.stop()


@contextmanager
def nginx(configuration: str, port: int) -> Iterator[Nginx]:
    """Run an nginx.

    Args:
        configuration: what stands in its http block, with `reuseport` where it listens.
        port: where that is; one that is reserved.
    """
    with tempfile.TemporaryDirectory(prefix="zeh-") as name:
        folder = Path(name)
        user = "user root;" if os.geteuid() == 0 else ""
        (folder / "nginx.conf").write_text(MAIN.format(folder=folder, user=user))
        (folder / "test.conf").write_text(configuration)
        server = Nginx(folder, port)
        server.start()
        try:
            yield server
        finally:
            server.kill()


def example(name: str, changes: Mapping[str, str]) -> str:
    """Return an example's configuration, with other addresses and files in it.

    Args:
        name: of the file.
        changes: what stands there in the place of what, which is there once.
    """
    configuration = (EXAMPLES / name).read_text()
    for old, new in changes.items():
        assert configuration.count(old) == 1, old
        configuration = configuration.replace(old, new)
    return configuration


@contextmanager
def reserved_port() -> Iterator[int]:
    """Keep a port for those who share it, so that nobody else gets it while none of them runs."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]
