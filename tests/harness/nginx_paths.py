"""A real nginx of a test's own, and the ways in which publishers are deployed behind one."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from harness.databases import PROGRAMS, give_up, has_engine
from harness.waiting import until

EXAMPLES = Path(__file__).parents[2] / "examples"

PATIENCE = 60  # seconds that nginx may take for anything
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


@contextmanager
def nginx(configuration: str, port: int) -> Iterator[None]:
    """Run an nginx on a reserved port; its http block says `reuseport` where it listens."""
    with tempfile.TemporaryDirectory(prefix="zeh-") as name, ExitStack() as stack:
        folder = Path(name)
        user = "user root;" if os.geteuid() == 0 else ""
        (folder / "nginx.conf").write_text(MAIN.format(folder=folder, user=user))
        (folder / "test.conf").write_text(configuration)
        command = ["-p", name, "-c", f"{name}/nginx.conf", "-e", f"{name}/error.log"]
        command += ["-g", "daemon off;"]
        if program := shutil.which("nginx", path=PROGRAMS):
            stack.enter_context(_process([program, *command]))
        elif has_engine():
            stack.enter_context(_container(["nginx", *command], name))
        else:
            give_up("no nginx is to be had: apt-get install nginx-light, or start Docker")
        client = stack.enter_context(socket.socket())
        until(lambda: client.connect_ex(("127.0.0.1", port)) == 0, "nginx listens", PATIENCE)
        yield


@contextmanager
def _process(command: list[str]) -> Iterator[None]:
    silent = subprocess.DEVNULL
    process = subprocess.Popen(command, start_new_session=True, stdout=silent, stderr=silent)
    try:
        yield
    finally:
        # Its workers are killed with it: alone, they would go on.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)


@contextmanager
def _container(command: list[str], folder: str) -> Iterator[None]:
    from testcontainers.core.container import DockerContainer

    container = DockerContainer(IMAGE, network_mode="host", user=os.geteuid())
    with container.with_volume_mapping(folder, folder, mode="rw").with_command(command):
        yield


def example(name: str, changes: Mapping[str, str]) -> str:
    """Return an example's configuration, with other addresses and files in it."""
    configuration = (EXAMPLES / name).read_text()
    for old, new in changes.items():
        assert configuration.count(old) == 1, old
        configuration = configuration.replace(old, new)
    return configuration


@contextmanager
def reserved_port() -> Iterator[int]:
    """Keep a port for those who share it, so that no other gets it while none of them runs."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


PLAIN = """
server {
    listen 127.0.0.1:PORT reuseport;
    location / { proxy_pass http://PUBLISHER; }
}
"""

KEPT_OPEN = """
upstream publisher {
    server PUBLISHER;
    keepalive 8;
}
server {
    listen 127.0.0.1:PORT reuseport;
    location / {
        proxy_pass http://publisher;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_buffering off;
    }
}
"""


class Deployment(StrEnum):
    """Name what stands between a publisher and its readers."""

    DIRECT = "direct"
    BUFFERED = "nginx, HTTP/1.0, buffered"
    UNBUFFERED = "nginx, HTTP/1.1, unbuffered"
    PACKED = "nginx, gzip"


@contextmanager
def deployed(
    deployment: Deployment, url: str, changes: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Put a deployment before a publisher, with changes if it is the shipped one; yield its URL."""
    if deployment is Deployment.DIRECT:
        yield url
        return
    place = urlsplit(url)
    with reserved_port() as port:
        if deployment is Deployment.PACKED:
            here = {
                "127.0.0.1:8000": place.netloc,
                "listen 80;": f"listen 127.0.0.1:{port} reuseport;",
            }
            settings = example("nginx.conf", {**here, **(changes or {})})
        else:
            settings = PLAIN if deployment is Deployment.BUFFERED else KEPT_OPEN
        settings = settings.replace("PUBLISHER", place.netloc).replace("PORT", str(port))
        with nginx(settings, port):
            yield f"http://127.0.0.1:{port}{place.path}"
