"""Connections that break, and publishers that die: the truth up to a checkpoint, or nothing."""

import pytest
from harness.faults.account import Account
from harness.faults.every_cut import (
    Case,
    Framing,
    async_fetch,
    pool_fetch,
    random_faults,
    sync_fetch,
)
from harness.faults.killed_publisher import PARSERS, killed_while_sending
from harness.nginx_paths import Deployment


def rarely(*values, **options):
    """Leave a case to the long tests."""
    return pytest.param(*values, marks=pytest.mark.test_all, **options)


FORMS = [(framing, packed) for packed in (False, True) for framing in Framing]
DAILY = {(Framing.CHUNKED, False), (Framing.LENGTH, True)}
SOME_FORMS = [form if form in DAILY else rarely(*form) for form in FORMS]
"""Each framing and coding with both clients and consumers is too many for every day."""


def at_every(all_of_them, some):
    """Break answers at so many bytes in the long tests, and at fewer every day."""
    return pytest.mark.parametrize("every", [rarely(all_of_them), some], ids=["most", "some"])


@pytest.fixture
def account(tmp_path):
    """The database of consumers."""
    with Account.open(tmp_path / "consumer.db") as account:
        yield account


@pytest.fixture
def case(framing, packed):
    """Answers of one form."""
    return Case(framing, packed)


@pytest.mark.slow
@at_every(1, 8)
@pytest.mark.parametrize(("framing", "packed"), FORMS)
def test_answer_broken_at_any_byte_is_right_up_to_a_checkpoint(case, every):
    """Wherever an answer is cut, reset, truncated or corrupt, a page holds what is settled."""
    case.fetch_all(sync_fetch, every=every)
    assert case.findings.complaints == []
    assert case.findings.counts["Page"] > 100 / every
    assert case.findings.counts["CutPage"] > 50 / every


@pytest.mark.slow
@at_every(5, 15)
@pytest.mark.parametrize("fetching", [pool_fetch, async_fetch])
@pytest.mark.parametrize(("framing", "packed"), SOME_FORMS)
def test_other_clients_make_the_same_of_it(case, fetching, every):
    """The client without httpx and the async client give the same pages and errors."""
    case.fetch_all(fetching, every=every)
    assert case.findings.complaints == []
    assert case.findings.counts["Page"] > 100 / every


@pytest.mark.slow
@at_every(13, 39)
@pytest.mark.parametrize(("framing", "packed"), SOME_FORMS)
def test_consumer_goes_on_after_every_break(case, every, account):
    """Whatever becomes of the first answer, in the end every event has taken effect once."""
    case.consume_all(account, every=every)
    assert case.findings.complaints == []
    assert case.findings.counts["trials"] > 900 / every


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(5), rarely(range(5, 80))], ids=str)
@pytest.mark.parametrize("framing", Framing)
def test_random_faults_lose_and_repeat_nothing(framing, seeds, account):
    """Whatever happens to connections, one time after the other, each event takes effect once."""
    findings = random_faults(account, framing, seeds)
    assert findings.complaints == []
    assert findings.counts["trials"] == len(seeds)


@pytest.mark.slow
@pytest.mark.parametrize("deployment", [Deployment.DIRECT, *map(rarely, [*Deployment][1:])])
def test_publisher_that_is_killed_while_it_sends(deployment, tmp_path):
    """A publisher killed at any byte and any moment costs time, and no event, however deployed."""
    seeds = 1 if deployment is Deployment.DIRECT else 3
    findings = killed_while_sending(deployment, tmp_path, range(seeds))
    assert PARSERS == ("h11", "httptools")
    assert findings.complaints == []
    assert findings.counts["CutPage"] > 1
    assert findings.counts["kills"] > 3 * seeds
