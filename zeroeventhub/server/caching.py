"""Which answers may be kept, by whom, and how they are asked for again (RFC 9111, RFC 9110)."""

from hashlib import blake2b

from starlette.requests import Request
from starlette.responses import Response

__all__ = ["FRESH", "edition_of", "is_held", "page_response", "tag_of"]

FRESH = {"Cache-Control": "no-store"}
"""Headers of what is true only now."""

YEAR = 31_536_000


def page_response(
    request: Request, body: bytes, tag: str | None, *, media_type: str, shared: bool
) -> Response:
    """Answer with a page, which may be kept for ever if it can never be another.

    Args:
        request: what was asked.
        body: the page's bytes.
        tag: their entity tag; None if they may be others another time.
        media_type: of the body.
        shared: whether caches that serve several clients may keep it.
    """
    if tag is None:
        return Response(body, media_type=media_type, headers=FRESH)
    scope = "public" if shared else "private"
    headers = {"Cache-Control": f"{scope}, max-age={YEAR}, immutable", "ETag": tag}
    if is_held(request, tag):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)


def tag_of(cursor: str, body: bytes) -> str:
    """Return the entity tag of a page's bytes, which can never be others.

    The last cursor of a page vouches for the history before it, and so for the page.

    Args:
        cursor: the last one.
        body: the bytes.
    """
    identity = f"{cursor} {len(body)}".encode()
    return f'"{blake2b(identity, digest_size=16).hexdigest()}"'


def edition_of(tag: str, edition: str) -> str:
    """Return the entity tag of what has been made of bytes that have a tag."""
    return f'{tag[:-1]}-{edition}"'


def is_held(request: Request, tag: str) -> bool:
    """Tell whether the client holds what has this tag (RFC 9110, If-None-Match)."""
    held = ",".join(request.headers.getlist("if-none-match")).split(",")
    return any(one.strip().removeprefix("W/") in {tag, "*"} for one in held)
