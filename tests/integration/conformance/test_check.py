"""Check whole publishers: what is right is found right, and nothing that comes breaks a check."""

import time

import anyio
import pytest
from harness.calling import answer
from harness.checked import check, outcomes
from harness.mutant_publishers import MUTANTS, publisher
from harness.peer import peer_python, run_peer
from harness.web import answering, serving

__all__ = ["peer_python"]


def test_one_broken_connection_is_one_finding():
    """Of all checks that meet the same fault one fails, and the rest say which one."""
    application = publisher()

    async def breaking(scope, receive, send):
        if scope["type"] == "lifespan" or scope["path"] == "/feed":
            return await application(scope, receive, send)
        head = {"type": "http.response.start", "status": 200}
        await send({**head, "headers": [(b"content-length", b"9")]})
        return await send({"type": "http.response.body", "body": b"{"})

    with serving(breaking) as url:
        results = check(f"{url}/feed")
    broken = [name for name, reason in outcomes(results, "fail").items() if "no whole" in reason]
    assert len(broken) == 1
    others = [reason for reason in outcomes(results, "skip").values() if "no whole" in reason]
    assert any(one.startswith(f"It meets the fault that {broken[0]} has") for one in others)
    assert len(others) > 5
    assert not {name for name in outcomes(results, "pass") if name.startswith("problem")}


@pytest.mark.slow
def test_page_without_checkpoint_breaks_no_check():
    """Pages without a checkpoint make checks fail or skip, and no check crash."""
    with serving(publisher(MUTANTS["drops the checkpoint at the head"])) as url:
        failed = outcomes(check(f"{url}/feed"), "fail")
    assert failed["arrow"] == "The page has another checkpoint as Arrow than it has in lines."
    assert {"reading", "page-checkpoint"} <= set(failed)


def test_garbage_is_reported_and_breaks_nothing():
    """Discovery documents of every wrong form make checks fail or skip, and no check crash."""
    garbage = [b"[]", b"{}", b"\xff", b'{"token":[],"partitions":{}}', b"[" * 5000]
    garbage += [
        b'{"token":"1","partitions":[1,{"id":{}},{"id":"\xd9\xa1"},{"id":true}],"extensions":{}}',
        b'{"token":"1","partitions":[{"id":"0","closed":1,"startsAfterPartition":[]}]}',
        b'{"token":"1","partitions":[{"id":"0","cursorFromPartitions":"0"}],"extensions":[1]}',
    ]
    for body in garbage:
        with answering(lambda _, body=body: answer(body)) as url:
            assert outcomes(check(f"{url}/feed"), "fail"), body


@pytest.mark.slow
def test_slow_publisher_is_not_waited_for(monkeypatch):
    """When the time for all checks is over, what is left is skipped, and nothing fails for it."""
    monkeypatch.setattr("zeroeventhub.conformance.check.LONGEST", 2.0)
    application = publisher()

    async def slowly(scope, receive, send):
        if scope["type"] == "http":
            await anyio.sleep(0.15 if scope["path"] == "/feed" else 2.5)
        await application(scope, receive, send)

    began = time.monotonic()
    with serving(slowly) as url:
        results = check(f"{url}/feed")
    assert time.monotonic() - began < 20
    assert outcomes(results, "fail") == {}
    assert results["discovery-document"].outcome == "pass"
    assert "time" in results["splits"].reason


KNOWN_OF_PYTHON = {
    "v1-pagesizehint-zero",  # a 200 without a checkpoint
    "v1-pagesizehint-malformed",  # -1 reaches the reader
    "v1-lines-strict",  # NaN is sent
    "v1-parameters-twice",  # the last one counts
    "v1-cursor-malformed",  # the reader's error cuts a 200
    "v1-problem-documents",
    "v1-caching-no-store",
}
"""Checks that the published Python peer fails."""


def test_checks_find_what_is_known_of_the_python_peer(peer_python):
    """The published Python peer fails the checks of its known defects."""
    with run_peer(peer_python, "server.py", "trusting") as process:
        port = process.stdout.readline().strip()
        try:
            results = check(f"http://127.0.0.1:{port}/feed/v1", partitions=2)
        finally:
            process.terminate()
    assert set(outcomes(results, "fail")) >= KNOWN_OF_PYTHON
    right = {"several-cursors", "negotiation", "partition-count", "page-media-type"}
    assert {f"v1-{name}" for name in right} <= set(outcomes(results, "pass"))
