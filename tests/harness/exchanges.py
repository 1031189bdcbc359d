"""What a test has sent to databases and servers, shown if it fails."""

from collections import deque

from sqlalchemy import Engine, event

BODY = 500  # how many bytes of an answer are shown

last: deque[str] = deque(maxlen=40)
"""The last statements and requests."""


@event.listens_for(Engine, "before_cursor_execute")
def _note_statement(connection, _cursor, statement, parameters, *more) -> None:
    executemany = more[-1]
    shown = f"{len(parameters)} rows" if executemany else repr(parameters)
    last.append(f"{connection.dialect.name}: {statement}  {shown[:BODY]}")


def noted(application):
    """Wrap an ASGI application so that its last requests and answers are known."""

    async def asked(scope, receive, send) -> None:
        answer = b""

        async def sent(message) -> None:
            nonlocal answer
            piece = b"%d " % message["status"] if "status" in message else message.get("body", b"")
            answer += piece[: BODY - len(answer)]
            await send(message)

        try:
            await application(scope, receive, sent)
        finally:
            if scope["type"] == "http":
                query = scope["query_string"].decode("latin-1")
                last.append(f"{scope['method']} {scope['path']}?{query} -> {answer!r}")

    return asked
