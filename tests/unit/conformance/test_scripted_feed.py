"""A feed that answers by a script: its bytes, and what it answers where nothing goes wrong."""

import pytest

from zeroeventhub.conformance.scripted_feed import Reply, Request, Run, serve_feed


def sent(**options):
    """The header lines and the body of an answer."""
    written = []
    Reply(b"0123456789", **options).send(written.append)
    head, _, body = b"".join(written).partition(b"\r\n\r\n")
    return head.decode().split("\r\n"), body


@pytest.mark.parametrize(
    ("options", "header", "body"),
    [
        ({}, "Content-Length: 10", b"0123456789"),
        ({"length": 12}, "Content-Length: 12", b"0123456789"),
        ({"cut": 3}, "Content-Length: 10", b"012"),
        ({"cut": 3, "pause": 1e-9}, "Content-Length: 10", b"012"),
        (
            {"framing": "chunked"},
            "Transfer-Encoding: chunked",
            b"7\r\n0123456\r\n3\r\n789\r\n0\r\n\r\n",
        ),
        (
            {"framing": "chunked", "cut": 8},
            "Transfer-Encoding: chunked",
            b"7\r\n0123456\r\n1\r\n7\r\n",
        ),
        ({"framing": "close", "headers": (("X", "y"),)}, "X: y", b"0123456789"),
    ],
)
def test_answer_is_framed_and_cut_as_the_script_says(options, header, body):
    """Lengths may lie, chunks may lack their end, and a body breaks off at any byte."""
    lines, found = sent(status=410, **options)
    assert lines[0] == "HTTP/1.1 410 Gone"
    assert header in lines
    assert found == body


def test_answer_that_hangs_up_has_no_byte():
    """A connection that is closed without an answer has not even a status."""
    assert sent(hang_up=True) == ([""], b"")


@pytest.mark.parametrize(
    ("path", "change", "status"),
    [
        ("", {}, 200),
        ("/events", {}, 200),
        ("/lag", {}, 404),
        ("/events", {"token": "2"}, 409),
        ("/events", {"partition": "1"}, 400),
        *(("/events", {"cursor": cursor}, 200) for cursor in ("_last", "k0", "k4")),
        *(("/events", {"cursor": cursor}, 400) for cursor in ("x", "k5", "4", "k٣")),
    ],
)
def test_right_requests_are_answered_and_others_refused(path, change, status):
    """Where nothing goes wrong, a script answers as a right feed does."""
    query = {"token": "1", "partition": "0", "cursor": "_first", **change}
    assert serve_feed()(Request(path, query, "http://x"), Run()).status == status
