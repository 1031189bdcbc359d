"""Scenarios of lines: what is tolerated, and what is not of the protocol."""

from zeroeventhub.conformance.misbehaving.scenario import (
    EVENTS,
    PAGE,
    Reply,
    checkpoint,
    event,
    numbered,
    page,
    script,
)
from zeroeventhub.conformance.sections import (
    CAUGHT_UP,
    JSON,
    LINES,
    MEDIA_TYPES,
    PAGES,
    SPLITTING,
)

FIDELITY = "5.3"
_ALL = "Every event is applied once."
_ERROR = "Ends in an error; nothing of that line or behind it is applied."


def _tolerated(name: str, section: str, sentence: str, body: bytes) -> None:
    script(name, section, sentence, _ALL, body, always=True)


def _refused(name: str, section: str, sentence: str, body: bytes) -> None:
    applied = numbered(0, 1)
    script(name, section, sentence, _ERROR, body, always=True, applied=applied, error="protocol")


_END = page(2)

_tolerated(
    "unknown-fields",
    LINES,
    "Lines have members that nobody knows.",
    b"".join(
        (
            event(EVENTS[2], colour="red", nothing=None),
            event(EVENTS[3], caughtUp=True, extra={"cursor": "k1"}),
            checkpoint(4, colour=[1, {"data": 2}]),
        )
    ),
)
_tolerated(
    "unknown-commands",
    LINES,
    "There are lines without data and cursor.",
    b"".join(
        (
            b'{"ping":1}\n',
            event(EVENTS[2]),
            b"{}\n",
            event(EVENTS[3]),
            b'{"progress":0.5}\n',
            checkpoint(4),
        )
    ),
)
_tolerated(
    "no-cursor",
    LINES,
    "A cursor is null, and one is empty: neither is a checkpoint.",
    b"".join(
        (
            event(EVENTS[2]),
            b'{"cursor":null}\n',
            b'{"cursor":""}\n',
            event(EVENTS[3]),
            checkpoint(4),
        )
    ),
)
_tolerated(
    "one-line",
    LINES,
    "An event and its checkpoint stand on one line.",
    b"".join(
        (
            event(EVENTS[2], cursor="k3"),
            event(EVENTS[3], cursor="k4"),
        )
    ),
)
_tolerated("carriage-returns", SPLITTING, "Lines end in CR LF.", _END.replace(b"\n", b"\r\n"))
_tolerated(
    "empty-lines",
    SPLITTING,
    "There are empty lines.",
    b"\n" + _END.replace(b"\n", b"\n \n\t\n\r\n"),
)
_tolerated("no-last-newline", SPLITTING, "The last line does not end.", _END.rstrip(b"\n"))
_tolerated(
    "flags-of-others",
    CAUGHT_UP,
    "Flags hold what is not true.",
    b"".join(
        (
            event(EVENTS[2]),
            event(EVENTS[3]),
            checkpoint(4, caughtUp="yes", stopReached={"a": 1}),
        )
    ),
)
_tolerated(
    "caught-up-tail",
    CAUGHT_UP,
    "caughtUp is said, and an event stands behind it.",
    b"".join(
        (
            event(EVENTS[2]),
            checkpoint(3, caughtUp=True),
            event(EVENTS[3]),
        )
    ),
)

_refused(
    "byte-order-mark", MEDIA_TYPES, "A page starts with a byte order mark.", b"\xef\xbb\xbf" + _END
)
_refused(
    "bad-utf8",
    JSON,
    "A string holds bytes that are not UTF-8.",
    event('{"n":"%"}').replace(b"%", b"\xff") + _END,
)
_refused(
    "bad-utf8-passed-over",
    JSON,
    "A member that nobody knows is not UTF-8.",
    b'{"x":"\xff"}\n' + _END,
)
_refused("nan", JSON, "Data holds NaN.", event('{"n":NaN}') + _END)
_refused("infinity", JSON, "Data holds -Infinity.", event('{"n":-Infinity}') + _END)
_refused("half-pair", JSON, "Data escapes half a surrogate pair.", event('{"n":"\\ud800"}') + _END)
_refused("trailing-comma", JSON, "Data has a trailing comma.", event('{"n":1,}') + _END)
_refused("not-an-object", LINES, "A line is a list.", b"[1]\n" + _END)
_refused(
    "two-on-a-line", LINES, "Two objects stand on one line.", b'{"data":{}}{"data":{}}\n' + _END
)
_refused("number-cursor", LINES, "A cursor is a number.", event(EVENTS[2]) + b'{"cursor":4}\n')
_refused(
    "first-cursor", LINES, "A checkpoint says _first.", event(EVENTS[2]) + checkpoint("_first")
)
_refused(
    "other-partition",
    LINES,
    "A line is of another partition.",
    event(EVENTS[2], partition=7) + _END,
)
_refused(
    "circle",
    PAGES,
    "A page with events gives back the cursor that was asked for.",
    event(EVENTS[2]) + checkpoint(2),
)

script(
    "error-text",
    LINES,
    "Behind a checkpoint stands the text of an error, once.",
    "Applies up to the checkpoint, and ends in an error or asks again.",
    event(EVENTS[2]) + checkpoint(3) + b"Internal server error\n",
    may_fail=True,
)

script(
    "moving-head",
    PAGES,
    "An empty page moves the cursor on.",
    "Keeps the new cursor.",
    lambda place, number: Reply(checkpoint(place + 1)) if place == PAGE and number == 1 else None,
    events=[*numbered(0, 1), "{}", EVENTS[3]],
    applied=numbered(0, 1, 3),
)


script(
    "many-pages",
    PAGES,
    "There is a checkpoint behind every event.",
    _ALL,
    lambda place, _: (
        Reply(b"".join(event(EVENTS[n]) + checkpoint(n + 1) for n in range(place, 4)))
        if place < len(EVENTS)
        else None
    ),
)
