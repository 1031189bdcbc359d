"""Bodies that readers get wrong, and pages as Python's own JSON reads them."""

import json
import re
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from zeroeventhub.errors import CutPage, ProtocolError
from zeroeventhub.extensions import EXTENSIONS
from zeroeventhub.wire.documents import decode_answer, decode_info
from zeroeventhub.wire.ndjson import PageDecoder

PARTITION = 0
LONGEST_BYTE_BY_BYTE = 512

TOKENS = [
    *[b"{", b"}", b"[", b"]", b",", b":", b"\n", b" ", b"\t", b"\r", b"\x0b", b'"', b"\\", b"-"],
    *[b'"data":', b'"cursor":', b'"caughtUp":', b'"stopReached":', b'"partition":', b'"headers":'],
    *[b'"token":', b'"partitions":', b'"id":', b'"closed":', b'"extensions":', b'"cursors":'],
    *[b'{"data":', b'{"cursor":', b'{"data":1}\n', b'{"cursor":"a"}\n', b'"exactlyOnce":'],
    *[b'{"cursor":"b","caughtUp":true}\n', b'{"cursor":"c","stopReached":true}\n', b"}\n"],
    *[b"true", b"false", b"null", b"NaN", b"Infinity", b"0", b"1", b"01", b"1.5e-7", b"1e999"],
    *[b'"a"', b'""', b'"_first"', b'"_last"', b'"\\u2028"', b'"\\ud800"', b'"\\udc00"', b'"0"'],
    *[b'"\\ud83d\\ude00"', b"\xe2\x80\xa8", b"\xc2\x85", b"\xed\xa0\x80", b"\xff", b"\xc0\x80"],
    *[b"\xef\xbb\xbf", b"\x00", b"\x7f", b'"x":', b"9" * 30, b'{"h":"v"}', b"{}", b"[[[[", b"]]]]"],
]
"""What lines are made of, whole and in pieces."""

DEPTH = 100_000

HOSTILE = [
    *[b"NaN", b"Infinity", b"-Infinity", b"01", b"-01", b"+1", b".5", b"1.", b"1e", b"0x1", b"-"],
    *[b"1_000", "\u0661".encode(), b'"\xff"', b'"\xc0\x80"', b'"\xc0\xaf"', b'"\xed\xa0\x80"'],
    *[b'"\xf4\x90\x80\x80"', b'"\xe2\x80"', b'"\\ud800"', b'"\\udc00"', b'"\\ud800\\u0041"'],
    *[b'"\\udc00\\ud800"', b'[["\\udfff"]]', b'{"\\ud800":1}', b'"\x00"', b'"\x01"', b'"\t"'],
    *[b'"\\x41"', b'"\\u12"', b"'a'", b"tru", b'"open', b"\xa0 1", b"[1,\x0b2]", b"1/*1*/"],
    *["[1,\u20282]".encode(), "[1,\u00a02]".encode(), b"[1,]", b'{"a":1,}', b"[1 2]", b"{1:2}"],
    *[b"1 2", b"1}{", b"/**/1", b"]", b"", b"[" * DEPTH, b"[" * DEPTH + b"]" * DEPTH],
    b'{"a":' * DEPTH + b"1" + b"}" * DEPTH,
]
"""Values that are no JSON, or that no reader could hold."""

ODD = [
    *[b"null", b"false", b"1", b'"true"', b"[true]", b"{}", b"-0", b"-0.0", b"1E+2", b"1e-400"],
    *[b"1e400", b"9" * 5_000, b"0." + b"1" * 5_000, b"9007199254740993", b'{"a":1,"a":2}'],
    *[b'{"":{"":1}}', b'{"cursor":"z","data":{"cursor":"y"}}', b'"{\\"cursor\\":\\"z\\"}\\n"'],
    *[
        b'"\\ud83d\\ude00"',
        b'"\\u0000"',
        b'"\x7f"',
        '"\u0085\u2028\u2029\ufeff\U0010ffff"'.encode(),
    ],
    *['"e\u0301é"'.encode(), b'"\\/"', b' \t{ "a"\r:\t[ 1 , 2 ] } ', b"[" * 100 + b"]" * 100],
]
"""Values that are JSON, and that readers get wrong."""

CHECKPOINT = b'{"cursor":"a","caughtUp":true}\n'

SEEDS = [
    b'{"data":{"n":1}}\n{"cursor":"a","caughtUp":true}\n{"data":2}\n',
    b'{"partition":0,"headers":{"h":"v"},"data":[1e9,"\xc3\xa5"]}\r\n{"partition":"0","cursor":"b"}',
    b'{"token":"t","partitions":[{"id":"0","closed":true}],"extensions":["wait",1]}',
    b'{"cursors":["a","b"]}',
    b"\n" * 100,
    b'{"cursor":"a"}\n{"data":1}\n{"cursor":"a","cursor":"b"',
    b'{"data":1}\n{"cursor":"\\u0061\\/"}',
    b'{"cursor":"a"}\n{"data":1}\nInternal server error\n',
    b'{"cursor":"a","caughtUp":true,"caughtUp":false}\n',
    *[b'{"data":%b}\n%b' % (value, CHECKPOINT) for value in ODD],
    *[b'{"cursor":"a","caughtUp":%b,"stopReached": %b }\n' % (value, value) for value in ODD],
    *[
        line + b"\n" + CHECKPOINT
        for line in (
            *[b'{"data":1}\r', b'\t{ \t"data" :\t1 } \r', b"\n\r\n \t\n", b'{"d\\u0061ta":1}'],
            *[b'{"data":1,"data":2}', b'{"DATA":1,"Data":2}', b'{"newer":{"data":1,"cursor":"z"}}'],
            *[b'{"cursor":null,"data":1}', b'{"cursor":"","data":1}', b'{"cursor":"a","data":2}'],
            b'{"cursor":"%b"}' % (b"c" * 4096),
        )
    ],
]
"""What is right, and hard to get right."""


class Number(str):
    """Hold a number's digits: nothing of them is lost."""

    __slots__ = ()


class Whole(Number):
    """Hold the digits of a number without fraction and exponent."""

    __slots__ = ()


class Outcome(NamedTuple):
    """Hold what became of a body: an error's name, or a page."""

    error: str = ""
    data: tuple[Any, ...] = ()
    cursor: str = ""
    caught_up: bool = False
    stop_reached: bool = False


class _RefusedError(Exception):
    """A line is not of the protocol."""


class _UnclearError(Exception):
    """A line on which readers may differ."""


def check(body: bytes) -> None:
    """Decode a body in every way, and raise AssertionError if that shows a fault."""
    whole = decoded([body])
    sizes = {len(body) % 7 + 2, 64} | ({1} if len(body) <= LONGEST_BYTE_BY_BYTE else set())
    for size in sizes:
        chunks = [body[start : start + size] for start in range(0, len(body), size)]
        assert decoded(chunks) == whole, f"chunks of {size} bytes make a difference"
    try:
        expected = reference(body)
    except _UnclearError:
        expected = None
    if expected is not None and whole.error != "depth":
        raw = tuple(strict(event.decode()) for event in whole.data)
        assert whole._replace(data=raw) == expected, f"{whole} is not {expected}"
    answered = [extension for extension in EXTENSIONS.values() if extension.path]
    for decode in (decode_info, *(partial(decode_answer, extension) for extension in answered)):
        try:
            decode(body)
        except ProtocolError:
            continue


def decoded(chunks: list[bytes]) -> Outcome:
    """Decode a page; nothing but an error of the decoder's own is expected."""
    decoder = PageDecoder(PARTITION)
    try:
        for chunk in chunks:
            decoder.feed(chunk)
        page = decoder.page()
    except CutPage:
        return Outcome("cut")
    except ProtocolError as error:
        return Outcome("depth" if "recursion" in str(error) else "protocol")
    events = tuple(event.raw for event in page.events)
    body = b"".join(chunks)
    assert all(raw in body for raw in events), "an event is not as it was sent"
    return Outcome("", events, page.cursor, page.caught_up, page.stop_reached)


def reference(body: bytes) -> Outcome:
    """Read a page line by line with Python's JSON, and the words of the specification."""
    *lines, rest = body.split(b"\n")
    if not rest and len(lines) > 1 and lines[-1].strip(b" \t\r")[:1] not in {b"", b"{"}:
        lines.pop()  # the text of an error
    settled: list[Any] = []
    tail: list[Any] = []
    mark: dict[str, Any] = {}
    try:
        for line in chain(map(_line, lines), [_last_line(rest)]):
            if "data" in line:
                tail.append(line["data"])
            if line.get("cursor"):
                settled += tail
                tail, mark = [], line
    except _RefusedError:
        return Outcome("protocol")
    if not mark:
        return Outcome("cut")
    return Outcome(
        "",
        tuple(settled),
        mark["cursor"],
        not tail and mark.get("caughtUp") is True,
        mark.get("stopReached") is True,
    )


def _last_line(rest: bytes) -> dict[str, Any]:
    """Read a line without its newline: one that is no whole object was cut."""
    try:
        if not isinstance(_document(rest), dict):
            return {}
    except _RefusedError:
        return {}
    return _line(rest)


def _line(line: bytes) -> dict[str, Any]:
    if not line.strip(b" \t\r"):
        return {}
    document = _document(line)
    if not isinstance(document, dict):
        raise _RefusedError
    cursor, partition = document.get("cursor"), document.get("partition")
    headers = {} if document.get("headers") is None else document["headers"]
    if not (cursor is None or type(cursor) is str) or not isinstance(headers, dict):
        raise _RefusedError
    if any(type(value) is not str for value in headers.values()):
        raise _RefusedError
    if not (partition is None or type(partition) in {str, Whole}):
        raise _RefusedError
    if type(partition) is Whole and len(partition) > 18:
        raise _UnclearError
    if "data" not in document and not cursor:
        return {}
    number = str(int(partition)) if type(partition) is Whole else partition
    if number not in {None, str(PARTITION)}:
        raise _RefusedError
    if cursor and (not re.fullmatch("[ -~]{1,4096}", cursor) or cursor in {"_first", "_last"}):
        raise _RefusedError
    return document


def _document(line: bytes) -> Any:
    try:
        document = strict(line.decode(), _once)
        # A surrogate without its other half has no form in UTF-8, wherever it is.
        json.dumps(document, ensure_ascii=False).encode()
    except RecursionError:
        raise _UnclearError from None
    except ValueError:
        raise _RefusedError from None
    return document


def strict(text: str, pairs: Any = None) -> Any:
    """Decode JSON as RFC 8259 has it, and keep numbers as they are written."""
    return json.loads(
        text,
        parse_int=Whole,
        parse_float=Number,
        parse_constant=_refuse_constant,
        object_pairs_hook=pairs,
    )


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object; where a name is there twice, readers may look at the first as well."""
    known = {"data", "cursor", "partition", "headers", "caughtUp", "stopReached"}
    names = [name for name, _ in pairs if name in known]
    if len(names) != len(set(names)):
        raise _UnclearError
    return dict(pairs)
