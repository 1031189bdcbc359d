"""The scenarios, in the order in which they are listed."""

import gzip
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from zeroeventhub.conformance.scripted_feed import (
    ALL_APPLIED,
    EVENTS,
    MIDDLE,
    PAGE,
    Reply,
    Request,
    Responder,
    Run,
    checkpoint,
    discovery,
    event,
    numbered,
    page,
    place_of,
    problem,
    scenario,
    script,
    serve_feed,
    text,
)

_END = page(MIDDLE)
_RETRY = "Asks again, and applies every event once."


# Answers that break off, claim a wrong length, or refuse.

script("4", "good", "Nothing goes wrong.")()
script("6", "no-checkpoint", "A complete answer of events has no checkpoint.")(
    event(2) + event(3), "Applies none of it, and asks again."
)
script("6", "empty-body", "An answer of status 200 has no body.")(b"", _RETRY)
script("6", "tail", "An event follows the last checkpoint, and comes again.")(
    event(2) + checkpoint(3) + event(3), "Drops the tail, so that no event is applied twice."
)
script(
    "6",
    "applied-twice",
    "An answer breaks off after its events; with the next try there are more of them.",
)(
    lambda place, number: (
        Reply(b"".join(map(event, range(number))), framing="close")
        if place == 0 and number in {1, 2}
        else None
    ),
    "Applies none of the first try.",
)
script("6", "length-short", "Content-Length is too small: it ends inside of the last checkpoint.")(
    Reply(_END, length=len(_END) - 5, cut=len(_END) - 5), _RETRY
)
script("6", "length-long", "Content-Length is too large: the connection closes before it is met.")(
    Reply(_END, length=len(_END) + 5), "Applies the page: its checkpoint came."
)
script("15.1", "hang-up", "The connection closes without an answer.")(Reply(hang_up=True), _RETRY)
script("15.1", "drip", "The answer comes byte by byte.")(Reply(_END, pause=0.005))
script("2.2", "gzip", "The answer is compressed, though the request asked for identity.")(
    Reply(gzip.compress(_END), headers=(("Content-Encoding", "gzip"),)),
    "Unpacks it within bounds, or ends in an error.",
    may_fail=True,
)
script("2.2", "plain", "Pages come as text/plain.")(Reply(_END, media_type="text/plain"))
script("2.2", "typeless", "Pages come without a type.")(Reply(_END, media_type=None))
_FORM = Reply(b"<html><form>Log in</form></html>\n", media_type="text/html; charset=utf-8")
script("15.1", "html", "A login form comes with status 200.")(_FORM, _RETRY)
_LATER = (("Retry-After", "1"),)
for _name, _status in (("unavailable", 503), ("too-many", 429)):
    _reply = Reply(b"", _status, headers=_LATER)
    script("15.2", _name, f"{_status} comes with Retry-After.")(_reply, "Waits, and asks again.")
script("15.1", "failed-once", "500 comes once.")(problem(500, "failed"), _RETRY)
_reply = Reply(_FORM.body, 502, "text/html")
script("15.1", "bad-gateway", "A proxy's 502 comes as HTML.")(_reply, _RETRY)
for _name, _value in (
    ("retry-after-negative", "-5"),
    ("retry-after-words", "soon"),
    ("retry-after-past", "Wed, 21 Oct 2015 07:28:00 GMT"),
):
    _reply = Reply(b"", 503, headers=(("Retry-After", _value),))
    script("15.2", _name, f"503 comes with Retry-After: {_value}.")(_reply, _RETRY)
script("10.2", "trimmed", "The cursor lies below the retained range.")(
    problem(410, "trimmed", earliestCursor="k3"),
    "Ends in an error: events are lost, and only an operator may go on.",
    error="trimmed",
)
script("10.2", "diverged", "The cursor belongs to a history that is gone.")(
    problem(410, "diverged"), error="diverged"
)
_reply = Reply(b"gone\n", 410, "text/plain")
script("15.1", "gone", "410 comes as text.")(_reply, error="gone")
_reply = Reply(b"", 401, None, (("WWW-Authenticate", "Bearer"),))
script("15.1", "forbidden", "The credentials are no longer good.")(_reply, error="forbidden")
for _reply in (Reply(b"", 204), Reply(_END, 206)):
    script("15.1", f"status-{_reply.status}", f"A page comes with status {_reply.status}.")(
        _reply, "Ends in an error: it is not a page.", error="refused"
    )


def _redirect(request: Request, run: Run) -> Reply:
    if request.path.startswith("/elsewhere"):
        run.faults.append("A redirection was followed, with whatever credentials there were.")
        return discovery() if request.path == "/elsewhere" else Reply(page(0))
    origin = request.url.replace("127.0.0.1", "localhost")
    return Reply(b"", 302, None, (("Location", f"{origin}/elsewhere{request.path}"),))


scenario("2.1", "redirect", "Everything redirects to another origin.")(
    _redirect, {0: []}, "Ends in an error that says where to, and goes nowhere.", error="moved"
)


# Answers that break off at every byte, in every framing.

_BOTH = event(2) + checkpoint(3) + event(3) + checkpoint(4)


def _cuts(name: str, framing: Literal["length", "chunked", "close"], sentence: str) -> None:
    def answer(request: Request, run: Run, offset: int = 0) -> Reply:
        return serve_feed(Reply(_BOTH, framing=framing, cut=offset))(request, run)

    right = "Applies up to the last checkpoint that came, and asks again from there."
    scenario("6", name, sentence)(answer, {0: EVENTS}, right, sizes=len(_BOTH))


_BROKEN = "The answer breaks off after so many bytes,"
_cuts("cut", "length", f"{_BROKEN} short of its Content-Length.")
_cuts("cut-chunked", "chunked", f"{_BROKEN} without its last chunk.")
_cuts(
    "cut-clean", "close", "The answer ends after so many bytes, and nothing shows that it was cut."
)


# Layouts of partitions: tokens that change, parents and heirs.

_Layout = Sequence[dict[str, Any]]
_Events = Mapping[int, Mapping[int, str]]
_ROOT = {"id": "0"}
_CLOSED = {"id": "0", "closed": True}
_ALL = dict(enumerate(EVENTS))


def _serve_layouts(layouts: Sequence[_Layout], events: _Events, refusals: int) -> Responder:
    """Serve a layout; if there are two, the second one after a request from the middle."""
    changes = len(layouts) > 1

    def answer(request: Request, run: Run) -> Reply:
        changed = changes and run.asked["change"] > 0
        layout, token = layouts[changed], "2" if changed else "1"
        if not request.path:
            return discovery(layout, token)
        place = place_of(request.query.get("cursor", ""), 99)
        partition = request.query.get("partition", "")
        if place is None or not partition.isdigit():
            return problem(400, "bad-cursor")
        if changes and place >= MIDDLE and run.asked["change"] < refusals:
            run.asked["change"] += 1
            return problem(409, "token-changed")
        if request.query.get("token") != token:
            return problem(409, "token-changed")
        if int(partition) not in {int(entry["id"]) for entry in layout}:
            return problem(400, "bad-request")
        # Partitions share their positions: an heir starts where its ancestor ended.
        left = {at: data for at, data in events[int(partition)].items() if at >= place}
        chosen = dict(sorted(left.items())[:PAGE])
        end = max(chosen, default=place - 1) + 1
        return Reply(b"".join(map(event, chosen.values())) + checkpoint(end))

    return answer


def _layouts(section: str, name: str, sentence: str) -> Callable[..., None]:
    """Return the function that registers a feed whose layout changes."""

    def register(
        right: str,
        layouts: Sequence[_Layout],
        events: _Events,
        applied: Mapping[int, Sequence[str]] | None = None,
        refusals: int = 1,
        **more: Any,
    ) -> None:
        answer = _serve_layouts(layouts, events, refusals)
        placed = {partition: list(places.values()) for partition, places in events.items()}
        scenario(section, name, sentence)(answer, applied or placed, right, **more)

    return register


_layouts(
    "8.1",
    "token-changed",
    "409 comes after the first page, and a new layout has one partition more.",
)(
    "Discovers again, and goes on where it was.",
    [[_ROOT], [_ROOT, {"id": "1"}]],
    {0: _ALL, 1: {0: '"new"'}},
)
_layouts("8.1", "token-refused", "409 comes three times in a row.")(
    "Discovers again and again, with pauses.", [[_ROOT], [_ROOT]], {0: _ALL}, refusals=3
)
_layouts(
    "8.3",
    "children",
    "A closed partition has a child that starts after it, and is listed before it.",
)(
    "Reads the child when the parent has been read to its end.",
    [[{"id": "5", "startsAfterPartition": "0"}, _CLOSED]],
    {0: _ALL, 5: {0: '"child"'}},
    sequence=(0, 5),
)
_layouts("8.3", "children-as-numbers", "Discovery writes startsAfterPartition as a number.")(
    "Takes it for the string of the same digits.",
    [[{"id": "5", "startsAfterPartition": 0}, _CLOSED]],
    {0: _ALL, 5: {0: "{}"}},
    sequence=(0, 5),
)
_layouts("8.3", "children-later", "A partition is closed and gets a child while it is being read.")(
    "Reads the parent to its end, and then the child.",
    [[_ROOT], [_CLOSED, {"id": "1", "startsAfterPartition": "0"}]],
    {0: _ALL, 1: {0: '"child"'}},
    sequence=(0, 1),
)
_layouts("8.3", "parent-gone", "A partition starts after one that is not listed.")(
    "Reads it: it waits for nothing.", [[{"id": "0", "startsAfterPartition": "9"}]], {0: _ALL}
)
_NEVER = "Ends in an error: it would never be read."
_layouts("8.3", "parent-open", "A partition starts after one that is not closed.")(
    _NEVER, [[_ROOT, {"id": "1", "startsAfterPartition": "0"}]], {0: {}, 1: {}}, error="protocol"
)
_CIRCLE = [
    {"id": "0", "closed": True, "startsAfterPartition": "1"},
    {"id": "1", "closed": True, "startsAfterPartition": "0"},
]
_layouts("8.3", "parents-in-a-circle", "Two partitions start after each other.")(
    _NEVER, [_CIRCLE], {0: {}, 1: {}}, error="protocol"
)
_HEIRS = [
    {"id": "1", "cursorFromPartitions": ["0"]},
    {"id": "2", "cursorFromPartitions": ["7", "0"]},
]
_layouts("8.4", "heirs", "Two new partitions replace one, and continue from its cursor.")(
    "Starts both where it was in the partition that went.",
    [[_ROOT], _HEIRS],
    {
        0: {0: EVENTS[0], 1: EVENTS[1]},
        1: {0: EVENTS[0], 2: EVENTS[2]},
        2: {1: EVENTS[1], 3: EVENTS[3]},
    },
    applied={0: numbered(0, 1), 1: numbered(2), 2: numbered(3)},
)

_ODD = ["k+1 &=%25", "\"k'2\\", "k~3/?#;:", "k" * 4096]


def _odd_cursors(request: Request, run: Run) -> Reply:
    if not request.path:
        return discovery()
    cursor = request.query.get("cursor", "")
    places = {"_first": 0, **{odd: place + 1 for place, odd in enumerate(_ODD)}}
    place = places.get(cursor)
    if place is None:
        run.faults.append("A cursor came back as another.")
        return problem(400, "bad-cursor")
    if place == len(_ODD):
        return Reply(checkpoint(cursor))
    return Reply(event(place) + checkpoint(_ODD[place]))


scenario(
    "7.1",
    "odd-cursors",
    "Cursors hold every kind of printable character, and one has 4,096 of them.",
)(_odd_cursors, {0: EVENTS}, "Gives each back as it came.")


# Lines that clients accept.


def _tolerated(section: str, name: str, sentence: str) -> Callable[..., None]:
    """Return the function that registers lines which a right consumer accepts."""
    return lambda *lines: script(section, name, sentence)(b"".join(lines), always=True)


_tolerated("5.2", "unknown-fields", "Lines have unknown members.")(
    event(2, colour="red", nothing=None),
    event(3, caughtUp=True, extra={"cursor": "k1"}),
    checkpoint(4, colour=[1, {"data": 2}]),
)
_tolerated("5.2", "unknown-commands", "There are lines without data and cursor.")(
    b'{"ping":1}\n', event(2), b"{}\n", event(3), b'{"progress":0.5}\n', checkpoint(4)
)
_tolerated("5.2", "no-cursor", "A cursor is null, and one is empty: neither is a checkpoint.")(
    event(2), b'{"cursor":null}\n', b'{"cursor":""}\n', event(3), checkpoint(4)
)
_tolerated("5.2", "one-line", "An event and its checkpoint are one line.")(
    event(2, cursor="k3"), event(3, cursor="k4")
)
_tolerated("5.1", "carriage-returns", "Lines end in CR LF.")(_END.replace(b"\n", b"\r\n"))
_tolerated("5.1", "empty-lines", "There are empty lines.")(
    b"\n", _END.replace(b"\n", b"\n \n\t\n\r\n")
)
_tolerated("5.1", "no-last-newline", "The last line does not end.")(_END.rstrip(b"\n"))
_tolerated("9.2", "flags-of-others", "Flags have values other than true.")(
    event(2), event(3), checkpoint(4, caughtUp="yes", stopReached={"a": 1})
)
_tolerated("9.2", "caught-up-tail", "An event follows a checkpoint that says caughtUp.")(
    event(2), checkpoint(3, caughtUp=True), event(3)
)


# Lines that break the protocol.


def _refused(section: str, name: str, sentence: str, *lines: bytes) -> None:
    """Register lines which a right consumer refuses."""
    right = "Ends in an error; nothing of that line or after it is applied."
    script(section, name, sentence)(b"".join(lines), right, error="protocol")


_refused("2.2", "byte-order-mark", "A page starts with a byte order mark.", b"\xef\xbb\xbf", _END)
_BAD_UTF8 = event('{"n":"%"}').replace(b"%", b"\xff")
_refused("2.3", "bad-utf8", "A string holds bytes that are not UTF-8.", _BAD_UTF8, _END)
_BAD_UTF8 = b'{"x":"\xff"}\n'
_refused("2.3", "bad-utf8-passed-over", "An unknown member is not UTF-8.", _BAD_UTF8, _END)
_refused("2.3", "nan", "Data holds NaN.", event('{"n":NaN}'), _END)
_refused("2.3", "infinity", "Data holds -Infinity.", event('{"n":-Infinity}'), _END)
_refused("2.3", "half-pair", "Data escapes half a surrogate pair.", event('{"n":"\\ud800"}'), _END)
_refused("2.3", "trailing-comma", "Data has a trailing comma.", event('{"n":1,}'), _END)
_refused("5.2", "not-an-object", "A line is a list.", b"[1]\n", _END)
_refused("5.2", "two-on-a-line", "Two objects are on one line.", b'{"data":{}}{"data":{}}\n', _END)
_refused("5.2", "number-cursor", "A cursor is a number.", event(2), b'{"cursor":4}\n')
_refused("5.2", "first-cursor", "A checkpoint says _first.", event(2), checkpoint("_first"))
_refused("5.2", "other-partition", "A line is of another partition.", event(2, partition=7), _END)
_refused(
    "6",
    "circle",
    "A page with events gives back the cursor that was asked for.",
    event(2),
    checkpoint(2),
)

script("5.2", "error-text", "The text of an error follows a checkpoint, once.")(
    event(2) + checkpoint(3) + b"Internal server error\n",
    "Applies up to the checkpoint, and ends in an error or asks again.",
    may_fail=True,
)
script("6", "moving-head", "An empty page moves the cursor on.")(
    lambda place, number: Reply(checkpoint(place + 1)) if place == PAGE and number == 1 else None,
    "Keeps the new cursor.",
    events=[*numbered(0, 1), "{}", EVENTS[3]],
    applied=numbered(0, 1, 3),
)
script("6", "many-pages", "A checkpoint follows every event.")(
    lambda place, _: (
        Reply(b"".join(event(n) + checkpoint(n + 1) for n in range(place, len(EVENTS))))
        if place < len(EVENTS)
        else None
    )
)


# ZeroEventHub v1.

_NOT_V2 = Reply(b'{"detail":"Parameter n not found"}', 400, "application/json")


def _page_v1(partition: int, place: int) -> bytes:
    """Write the page of a partition that follows a place."""
    end = min(place + PAGE, len(EVENTS))
    events = [f'{{"partition":{partition},"data":{data}}}\n' for data in EVENTS[place:end]]
    return "".join((*events, f'{{"partition":{partition},"cursor":"k{end}"}}\n')).encode()


def _script_v1(
    name: str,
    sentence: str,
    change: Callable[[bytes, int, int], bytes] = lambda page, _place, _number: page,
    right: str = ALL_APPLIED,
    *,
    partitions: int = 1,
    greeting: Reply = _NOT_V2,
    error: str | None = None,
) -> None:
    """Register a feed of ZeroEventHub v1, whose pages may change by position and try."""

    def answer(request: Request, run: Run) -> Reply:
        if request.path:
            return Reply(b"", 404, None)
        if "n" not in request.query:
            return greeting
        asked = {
            number: place_of(request.query[f"cursor{number}"])
            for number in range(partitions)
            if f"cursor{number}" in request.query
        }
        if request.query["n"] != str(partitions) or len(asked) != 1:
            return _NOT_V2
        ((partition, place),) = asked.items()
        if place is None:
            return _NOT_V2
        run.asked[f"{partition} {place}"] += 1
        number = run.asked[f"{partition} {place}"]
        return Reply(change(_page_v1(partition, place), place, number))

    applied = dict.fromkeys(range(partitions), EVENTS[:MIDDLE] if error else EVENTS)
    scenario("12", f"v1-{name}", sentence)(answer, applied, right, error=error, v1=partitions)


_script_v1("good", "Nothing goes wrong.")
_script_v1("partitions", "Two partitions are served, one cursor a request.", partitions=2)
_script_v1(
    "unprocessable",
    "A request without parameters is answered with 422.",
    greeting=Reply(b'{"detail":[]}', 422, "application/json"),
)
_script_v1(
    "partition-as-text",
    "Lines name their partition as a string.",
    lambda page, _place, _number: page.replace(b'"partition":0', b'"partition":"0"'),
)
_script_v1(
    "headers",
    "Headers come, though none was asked for.",
    lambda page, _place, _number: page.replace(b'"data"', b'"headers":{"h":"v"},"data"'),
)
_script_v1(
    "null-headers",
    "Headers are null, as the Python peer sends them.",
    lambda page, _place, _number: page.replace(b'"data"', b'"headers":null,"data"'),
)
_script_v1(
    "other-partition",
    "A line is of another partition.",
    lambda page, place, _: page.replace(b":0,", b":5,") if place == MIDDLE else page,
    "Ends in an error.",
    error="protocol",
)
_script_v1(
    "no-checkpoint",
    "A page has no checkpoint, once.",
    lambda page, place, number: (
        page.split(b"\n")[0] + b"\n" if place == MIDDLE and number == 1 else page
    ),
    "Applies none of it, and asks again.",
)


# Data and discovery: everything that JSON allows, and a little more.


def _data(section: str, name: str, sentence: str) -> Callable[..., None]:
    """Return the function that registers the data of the events after the first page."""
    return lambda *data: script(section, name, sentence)(events=[*numbered(0, 1), *data])


_data("5.1", "separators", "Data holds U+2028, U+2029 and U+0085 as they are.")(
    text({"n": 2, "text": "a\u2028b\u2029c\u0085d"}), text("\u2028\u0085")
)
_data("5.3", "numbers", "Numbers are too large for many languages.")(
    '{"n":2,"big":' + "9" * 40 + ',"bigger":1e400,"exact":9007199254740993}',
    '{"n":3,"small":0.1000000000000000055511151231257827,"zero":-0.0}',
)
_data("5.2", "values", "Data is of every kind.")("null", "true", "17", '"text"', "[1,2]", '""')
_data("16", "nested", "Data is nested 90 levels deep.")("[" * 90 + "]" * 90, EVENTS[3])
_data("16", "long-line", "A line has a million bytes.")(
    text({"n": 2, "text": "x" * 1_000_000}), EVENTS[3]
)
_data("5.3", "same-names", "Data has a member twice, and odd names.")(
    '{"n":2,"n":3,"":0,"data":1,"cursor":"x"}'
)
_data("5.3", "escapes", "Strings are escaped in every way.")(
    '{"n":"\\u0041\\/\\ud83d\\ude00\\n\\u0000"}'
)


def _discovery(name: str, sentence: str, greeting: Reply, **more: Any) -> None:
    script("3", name, sentence)(greeting=greeting, **more)


_discovery("numbers-as-ids", "Discovery writes ids as numbers.", discovery([{"id": 0}]))
_discovery(
    "odd-extensions",
    "Discovery lists unknown extensions.",
    discovery(extensions=["x-new", 17, None, "stopp"], future={"a": 1}),
)
for _name, _sentence, _greeting in (
    ("number-token", "The token is a number.", discovery(token=1)),
    ("not-json", "Discovery is not JSON.", Reply(b"Hello!\n")),
    ("same-id-twice", "A partition is listed twice.", discovery([{"id": "0"}, {"id": "00"}])),
):
    _discovery(_name, _sentence, _greeting, applied=[], error="protocol")
