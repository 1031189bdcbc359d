"""An answer that breaks at any byte: the truth up to a checkpoint, or nothing."""

import anyio
import pytest
from harness.faults.account import Account
from harness.faults.answer import Framing
from harness.faults.every_cut import Case, consume_all, fetch_all, fetch_all_async


@pytest.fixture(params=[False, True], ids=["identity", "gzip"])
def case(request, framing):
    """An answer, in every form."""
    return Case(framing, request.param)


@pytest.fixture(params=Framing)
def framing(request):
    """What says where an answer ends."""
    return request.param


def test_answer_broken_at_every_byte_is_right_up_to_a_checkpoint(case):
    """Wherever an answer is cut, reset, truncated or corrupt, a page holds what is settled."""
    fetch_all(case)
    assert case.findings.complaints == []
    assert case.findings.counts["Page"] > 100
    assert case.findings.counts["CutPage"] > 50


def test_async_client_makes_the_same_of_it(case):
    """The async client gives the same pages and errors, shown at every third byte."""
    anyio.run(lambda: fetch_all_async(case, every=3))
    assert case.findings.complaints == []
    assert case.findings.counts["Page"] > 50


def test_consumer_goes_on_behind_every_break(case, tmp_path):
    """Whatever becomes of the first answer, in the end every event has taken effect once."""
    account = Account(tmp_path / "consumer.db")
    consume_all(case, account, every=13)
    account.dispose()
    assert case.findings.complaints == []
    assert case.findings.counts["trials"] > 70
