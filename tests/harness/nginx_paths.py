"""The ways in which a publisher is deployed: by itself, and behind an nginx of each kind."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from urllib.parse import urlsplit

from harness.nginx import example, nginx, reserved_port

__all__ = ["Deployment", "deployed", "shipped"]


class Deployment(StrEnum):
    """Name what stands between a publisher and its readers."""

    DIRECT = "direct"
    BUFFERED = "nginx, HTTP/1.0, buffered"
    UNBUFFERED = "nginx, HTTP/1.1, unbuffered"
    PACKED = "nginx, gzip"

    @property
    def compressed(self) -> bool:
        """Whether readers ask for gzip."""
        return self is Deployment.PACKED


PLAIN = """
server {{
    listen 127.0.0.1:{port} reuseport;
    location / {{ proxy_pass http://{publisher}; }}
}}
"""
"""As few settings as there can be, which all are nginx's own."""

KEPT_OPEN = """
upstream publisher {{
    server {publisher};
    keepalive 8;
}}
server {{
    listen 127.0.0.1:{port} reuseport;
    location / {{
        proxy_pass http://publisher;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_buffering off;
    }}
}}
"""


def shipped(publisher: str, port: int, changes: Mapping[str, str] | None = None) -> str:
    """Return the configuration that is shipped.

    Args:
        publisher: its address and port.
        port: where nginx listens.
        changes: what else stands there in the place of what.
    """
    places = {"127.0.0.1:8000": publisher, "listen 80;": f"listen 127.0.0.1:{port} reuseport;"}
    return example("nginx.conf", places | dict(changes or {}))


def _configuration(deployment: Deployment, publisher: str, port: int) -> str:
    match deployment:
        case Deployment.BUFFERED:
            return PLAIN.format(publisher=publisher, port=port)
        case Deployment.UNBUFFERED:
            return KEPT_OPEN.format(publisher=publisher, port=port)
    return shipped(publisher, port)


@contextmanager
def deployed(deployment: Deployment, url: str) -> Iterator[str]:
    """Deploy a publisher; yield the URL by which it is to be read.

    Args:
        deployment: what is put before it.
        url: the publisher's own.
    """
    if deployment is Deployment.DIRECT:
        yield url
        return
    place = urlsplit(url)
    with reserved_port() as port, nginx(_configuration(deployment, place.netloc, port), port):
        yield f"http://127.0.0.1:{port}{place.path}"
