"""What a test has sent to databases and servers, shown if it fails."""

from collections import deque

from sqlalchemy import Engine, event

SHOWN = 20  # how many of the last statements and requests are shown
BODY = 500  # how many bytes of an answer are shown

_statements: deque[str] = deque(maxlen=SHOWN)
_requests: deque[str] = deque(maxlen=SHOWN)


@event.listens_for(Engine, "before_cursor_execute")
def _note_statement(connection, _cursor, statement, parameters, *more) -> None:
    executemany = more[-1]
    shown = f"{len(parameters)} rows" if executemany else repr(parameters)
    _statements.append(f"{connection.dialect.name}: {statement}  {shown[:BODY]}")


def noted(application):
    """Wrap an ASGI application so that its last requests and answers are known."""

    async def asked(scope, receive, send) -> None:
        if scope["type"] != "http":
            await application(scope, receive, send)
            return
        query = scope["query_string"].decode("latin-1")
        request = f"{scope['method']} {scope['path']}{'?' if query else ''}{query}"
        status, body = None, b""

        async def sent(message) -> None:
            nonlocal status, body
            status = message.get("status", status)
            body += message.get("body", b"")[: BODY - len(body)]
            await send(message)

        try:
            await application(scope, receive, sent)
        finally:
            _requests.append(f"{request} -> {status} {body!r}")

    return asked


def clear() -> None:
    """Forget everything."""
    _statements.clear()
    _requests.clear()


def sections() -> list[tuple[str, str]]:
    """Return what pytest shows of a failed test."""
    found = {"Last statements": _statements, "Last requests": _requests}
    return [(title, "\n".join(lines)) for title, lines in found.items() if lines]
