"""Answers of the console: pages from templates, JSON, assets, and the headers that guard them."""

from datetime import UTC, datetime
from functools import cache
from hashlib import blake2b
from importlib import resources
from importlib.metadata import version
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import Response

from zeroeventhub.times import duration
from zeroeventhub.wire.documents import encode_document

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""The headers of every answer: nothing but the console's own scripts runs in its pages."""

_TYPES = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml", "txt": "text/plain"}

_YEAR = 31_536_000


def json_answer(document: Any) -> Response:
    """Return a document as JSON, with times in UTC."""
    return Response(encode_document(document), media_type="application/json", headers=HEADERS)


def page(template: str, data: dict[str, Any], *, base: str, status: int = 200) -> Response:
    """Return a page from whose folder the way up to that of the console is `base`."""

    def link(path: str, **query: Any) -> str:
        given = {name: value for name, value in query.items() if value not in {None, ""}}
        return f"{base}{path}{'?' if given else ''}{urlencode(given)}" or "./"

    def asset(name: str) -> str:
        return f"{base}assets/{name}?v={_asset(name)[1]}"

    text = _environment().get_template(template).render(data, link=link, asset=asset)
    return Response(text, status, HEADERS, "text/html")


def asset(name: str) -> Response:
    """Return a file of the package; its address changes with its content, so that caches keep it.

    Raises:
        KeyError: there is no such file.
    """
    content, digest = _asset(name)
    kept = {"Cache-Control": f"public, max-age={_YEAR}, immutable", "ETag": f'"{digest}"'}
    return Response(content, media_type=_TYPES[name.rpartition(".")[2]], headers=HEADERS | kept)


@cache
def _asset(name: str) -> tuple[bytes, str]:
    names = {one.name: one for one in (resources.files(__package__) / "assets").iterdir()}
    content = names[name].read_bytes()
    return content, blake2b(content, digest_size=8).hexdigest()


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"grouped": grouped, "moment": moment, "duration": duration, "size": size}
    made.globals["version"] = version("zeroeventhub")
    return made


def grouped(number: float | None) -> str:
    """Group the digits of a number; a fraction has two decimals at most."""
    if number is None:
        return "—"
    if isinstance(number, int) or number == int(number):
        return f"{int(number):,}"
    return f"{number:,.2f}"


def moment(found: datetime | str | None) -> Markup:
    """Show a moment, which a script puts into the zone of the reader."""
    if found is None:
        return Markup("—")
    if isinstance(found, str):
        found = datetime.fromisoformat(found)
    exact = found.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    shown = found.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(exact, exact, shown)


_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")


def size(count: float) -> str:
    """Show bytes in the largest unit that fits."""
    for unit in _SIZES:
        if count < 1024 or unit == _SIZES[-1]:  # noqa: PLR2004 - that of the units
            break
        count /= 1024
    return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
