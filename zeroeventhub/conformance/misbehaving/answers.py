"""Scenarios of answers that break off, lie about their length, or say that it is not the time."""

import gzip

from zeroeventhub.conformance.misbehaving.scenario import (
    EVENTS,
    MIDDLE,
    Reply,
    Request,
    Run,
    Scenario,
    add,
    checkpoint,
    discovery,
    event,
    numbered,
    page,
    problem,
    script,
)
from zeroeventhub.conformance.sections import KINDS, MEDIA_TYPES, PAGES, READING, REQUESTS

ANSWERS = "15.1"
AGAIN = "15.2"

_ALL = "Every event is applied once."
_RETRY = "Asks again, and applies every event once."
_FIRST_PAGE = numbered(0, 1)

script("good", READING, "Nothing goes wrong.", _ALL)

script(
    "no-checkpoint",
    PAGES,
    "A whole answer of events has no checkpoint.",
    "Applies none of it, and asks again.",
    event(EVENTS[2]) + event(EVENTS[3]),
)
script("empty-body", PAGES, "An answer of status 200 has no body.", _RETRY, b"")
script(
    "tail",
    PAGES,
    "Behind the last checkpoint stands an event, which comes again.",
    "Drops the tail, so that no event is applied twice.",
    event(EVENTS[2]) + checkpoint(3) + event(EVENTS[3]),
)
script(
    "applied-twice",
    PAGES,
    "An answer breaks off behind its events; with the next try there are more of them.",
    "Applies none of the first try.",
    lambda place, number: (
        None
        if place != 0 or number > 2  # noqa: PLR2004 - two tries
        else Reply(event(EVENTS[0]) + (event(EVENTS[1]) if number > 1 else b""), framing="close")
    ),
)
script(
    "length-short",
    PAGES,
    "Content-Length is too small: it ends inside of the last checkpoint.",
    _RETRY,
    Reply(page(MIDDLE), length=len(page(MIDDLE)) - 5, cut=len(page(MIDDLE)) - 5),
)
script(
    "length-long",
    PAGES,
    "Content-Length is too large: the connection closes before it is met.",
    "Applies the page: its checkpoint came.",
    Reply(page(MIDDLE), length=len(page(MIDDLE)) + 5),
)
script("hang-up", ANSWERS, "The connection closes without an answer.", _RETRY, Reply(hang_up=True))
script("drip", ANSWERS, "The answer comes byte by byte.", _ALL, Reply(page(MIDDLE), pause=0.005))
script(
    "gzip",
    MEDIA_TYPES,
    "The answer is compressed, though identity was asked for.",
    "Unpacks it within bounds, or ends in an error.",
    Reply(gzip.compress(page(MIDDLE)), headers=(("Content-Encoding", "gzip"),)),
    may_fail=True,
)
script(
    "plain", MEDIA_TYPES, "Pages come as text/plain.", _ALL, Reply(page(2), media_type="text/plain")
)
script("typeless", MEDIA_TYPES, "Pages come without a type.", _ALL, Reply(page(2), media_type=None))
_FORM = Reply(b"<html><form>Log in</form></html>\n", media_type="text/html; charset=utf-8")
script("html", ANSWERS, "A login form comes with status 200.", _RETRY, _FORM)

_LATER = (("Retry-After", "1"),)
script(
    "unavailable",
    AGAIN,
    "503 comes with Retry-After.",
    "Waits, and asks again.",
    Reply(b"", 503, headers=_LATER),
)
script(
    "too-many",
    AGAIN,
    "429 comes with Retry-After.",
    "Waits, and asks again.",
    Reply(b"", 429, headers=_LATER),
)
script("failed-once", ANSWERS, "500 comes once.", _RETRY, problem(500, "failed"))
script(
    "bad-gateway",
    ANSWERS,
    "A proxy's 502 comes as HTML.",
    _RETRY,
    Reply(_FORM.body, 502, "text/html"),
)
for _name, _value in (
    ("retry-after-negative", "-5"),
    ("retry-after-words", "soon"),
    ("retry-after-past", "Wed, 21 Oct 2015 07:28:00 GMT"),
):
    _reply = Reply(b"", 503, headers=(("Retry-After", _value),))
    script(_name, AGAIN, f"503 comes with Retry-After: {_value}.", _RETRY, _reply)

script(
    "trimmed",
    KINDS,
    "The cursor lies below the retained range.",
    "Ends in an error: events are lost, and only an operator may go on.",
    problem(410, "trimmed", earliestCursor="k3"),
    always=True,
    applied=_FIRST_PAGE,
    error="trimmed",
)
script(
    "diverged",
    KINDS,
    "The cursor belongs to a history that is gone.",
    "Ends in an error.",
    problem(410, "diverged"),
    always=True,
    applied=_FIRST_PAGE,
    error="diverged",
)
script(
    "gone",
    ANSWERS,
    "410 comes as text.",
    "Ends in an error.",
    Reply(b"gone\n", 410, "text/plain"),
    always=True,
    applied=_FIRST_PAGE,
    error="gone",
)
script(
    "forbidden",
    ANSWERS,
    "The credentials are no longer good.",
    "Ends in an error.",
    Reply(b"", 401, None, (("WWW-Authenticate", "Bearer"),)),
    always=True,
    applied=_FIRST_PAGE,
    error="forbidden",
)
for _status in (204, 206):
    script(
        f"status-{_status}",
        ANSWERS,
        f"A page comes with status {_status}.",
        "Ends in an error: it is not a page.",
        Reply(b"" if _status == 204 else page(2), _status),  # noqa: PLR2004 - No Content
        always=True,
        applied=_FIRST_PAGE,
        error="refused",
    )


def _redirect(request: Request, run: Run) -> Reply:
    if request.path.startswith("/elsewhere"):
        run.faults.append("A redirection was followed, with whatever credentials there were.")
        return discovery() if request.path == "/elsewhere" else Reply(page(0))
    elsewhere = request.origin.replace("127.0.0.1", "localhost")
    target = f"{elsewhere}{request.headers['x-scenario']}/elsewhere{request.path}"
    return Reply(b"", 302, None, (("Location", target),))


add(
    Scenario(
        "redirect",
        REQUESTS,
        "Everything redirects to another origin.",
        "Ends in an error that says where to, and goes nowhere.",
        _redirect,
        {0: []},
        error="moved",
    )
)
