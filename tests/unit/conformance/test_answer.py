"""What the checks see in answers, and in the lines of a page."""

import httpx
import pytest

from zeroeventhub.conformance.answer import Answer, PageText


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b'{"data":{}}', None),
        (b'{"data":null}', "data"),
        (b'{"data":{"a":1,"a":2}}', None),
        (b'{"data":1,"data":{}}', "twice"),
        (b'{"data":{"n":NaN}}', "constant"),
        (b'{"data":{"n":1e999,"m":' + b"9" * 5000 + b"}}", None),
        (b'{"data":"\\ud800"}', "surrogate"),
        (b'{"data":"\\ud83d\\ude00"}', None),
        (b'{"data":"\xff"}', "utf8"),
        (b'{"data":"\xe2\x80\xa8"}', None),
        (b'{"data":{},"cursor":"c"}', "both"),
        (b'{"data":{}}\r', "return"),
        (b"", "empty"),
        (b"x", "json"),
        (b"[]", "json"),
        (b'{"cursor":1}', "cursor"),
        (b'{"cursor":"_last"}', "cursor"),
        (b'{"cursor":"\\u00e9"}', "cursor"),
        (b'{"cursor":"' + b"c" * 4097 + b'"}', "cursor"),
        (b'{"cursor":null}', None),
        (b'{"cursor":"c","caughtUp":1}', "flag"),
        (b'{"cursor":"c","stopReached":false}', "flag"),
        (b'{"data":"' + b"x" * 65_525 + b'"}', "long"),
        (b'{"data":"' + b"x" * 65_524 + b'"}', None),
        (b'{"data":' + b"[" * 20_000 + b"}", "deep"),
        (b'{"something":"else"}', None),
        (b'{"data":{},"partition":7}', None),
        (b'{"data":{},"partition":"7"}', None),
        (b'{"data":{},"partition":8}', "partition"),
        (b'{"cursor":"c","partition":"07"}', "partition"),
        (b'{"data":{},"headers":{"h":"1"}}', None),
        (b'{"data":{},"headers":{"h":1}}', "headers"),
        (b'{"data":{},"headers":"h"}', "headers"),
    ],
)
def test_fault_of_a_line_is_seen(line, fault):
    """Every way in which a line can be wrong has a name, and right lines have none."""
    page = PageText.of(line + b'\n{"cursor":"end"}\n', partition=7)
    assert set(page.faults) == ({fault} if fault else set())
    assert page.cursor == "end"


@pytest.mark.parametrize(("age", "is_kept"), [(b"0", False), (b"\xb2", False), (b"9" * 5000, True)])
def test_answer_of_any_form_is_seen(age, is_kept):
    """A body that is not UTF-8 is no document, and an age that is no number keeps no answer."""
    headers = httpx.Headers([(b"Cache-Control", b"max-age=" + age)])
    answer = Answer("GET", "/feed", 200, headers, b'{"a":"\xff"}')
    assert (answer.document, answer.cacheable) == (None, is_kept)
