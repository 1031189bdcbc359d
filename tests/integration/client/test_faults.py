"""Connections that break, and publishers that die: the truth up to a checkpoint, or nothing."""

import anyio
import pytest
from harness.faults.account import Account
from harness.faults.answer import Framing
from harness.faults.every_cut import Case, consume_all, fetch_all, fetch_all_async
from harness.faults.findings import Findings
from harness.faults.killed_publisher import Killed
from harness.faults.layouts import CHANGES, Changing
from harness.faults.proxied import Proxied
from harness.faults.publishers import PARSERS
from harness.faults.random_faults import Trials
from harness.nginx_paths import Deployment

FORMS = [(framing, packed) for packed in (False, True) for framing in Framing]
some_forms = pytest.mark.parametrize(
    ("framing", "packed"),
    [
        *[(Framing.CHUNKED, False), (Framing.LENGTH, True)],
        *[
            pytest.param(*form, marks=pytest.mark.test_all)
            for form in FORMS
            if form not in {(Framing.CHUNKED, False), (Framing.LENGTH, True)}
        ],
    ],
)
"""Each framing and coding with both clients and consumers is too many for every day."""

a_part_or_all = pytest.mark.parametrize(
    "every", [pytest.param(1, marks=pytest.mark.test_all), 3], ids=["every byte", "some bytes"]
)


@pytest.fixture
def account(tmp_path):
    """The database of consumers."""
    account = Account(tmp_path / "consumer.db")
    yield account
    account.dispose()


@a_part_or_all
@pytest.mark.parametrize(("framing", "packed"), FORMS)
def test_answer_broken_at_any_byte_is_right_up_to_a_checkpoint(framing, packed, every):
    """Wherever an answer is cut, reset, truncated or corrupt, a page holds what is settled."""
    case = Case(framing, packed)
    fetch_all(case, every=every)
    assert case.findings.complaints == []
    assert case.findings.counts["Page"] > 100 / every
    assert case.findings.counts["CutPage"] > 50 / every


@a_part_or_all
@some_forms
def test_async_client_makes_the_same_of_it(framing, packed, every):
    """The async client gives the same pages and errors."""
    case = Case(framing, packed)
    anyio.run(lambda: fetch_all_async(case, every=every * 5))
    assert case.findings.complaints == []
    assert case.findings.counts["Page"] > 20 / every


@a_part_or_all
@some_forms
def test_consumer_goes_on_behind_every_break(framing, packed, every, account):
    """Whatever becomes of the first answer, in the end every event has taken effect once."""
    case = Case(framing, packed)
    consume_all(case, account, every=every * 13)
    assert case.findings.complaints == []
    assert case.findings.counts["trials"] > 70 / every


SEEDS = [range(12), pytest.param(range(12, 80), marks=pytest.mark.test_all)]


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
@pytest.mark.parametrize("framing", Framing)
def test_random_faults_lose_and_repeat_nothing(framing, seeds, account):
    """Whatever happens to connections, one time after the other, each event takes effect once."""
    findings = Findings()
    with Trials.open(account) as trials:
        for seed in seeds:
            findings.add(trials.run(seed, framing))
    assert findings.complaints == []
    assert findings.counts["trials"] == len(seeds)


@pytest.mark.parametrize(
    "seeds", [range(6), pytest.param(range(6, 25), marks=pytest.mark.test_all)], ids=str
)
def test_random_faults_before_a_real_server(seeds, account, tmp_path):
    """The same holds for connections that stay open between requests to a real server."""
    findings = Findings()
    with Proxied.open(account, tmp_path) as proxied:
        for seed in seeds:
            findings.add(proxied.run(seed))
    assert findings.complaints == []


@pytest.mark.parametrize(
    "deployment",
    [
        Deployment.DIRECT,
        *(pytest.param(one, marks=pytest.mark.test_all) for one in [*Deployment][1:]),
    ],
)
def test_publisher_that_is_killed_while_it_sends(deployment, tmp_path):
    """A publisher killed at any byte and any moment costs time, and no event, however deployed."""
    findings = Findings()
    seeds = 1 if deployment is Deployment.DIRECT else 3
    with Killed.open(deployment, tmp_path) as killed:
        for seed in range(seeds):
            findings.add(killed.run(seed))
    assert findings.complaints == []
    assert findings.counts["CutPage"] > 1
    assert findings.counts["kills"] > 3 * seeds


def test_publishers_speak_by_both_parsers():
    """Publishers that are killed speak HTTP by either parser that uvicorn has."""
    assert PARSERS == ("h11", "httptools")


CASES = [
    pytest.param(CHANGES[-1], 5, id="behind some lines"),
    *(pytest.param(one, 1, id=one.name, marks=pytest.mark.test_all) for one in CHANGES),
]


@pytest.mark.parametrize(("change", "every"), CASES)
def test_partitions_change_behind_any_line(change, every, tmp_path):
    """Wherever the token is rotated or a partition split or handed on, the consumer goes on."""
    with Changing.open(tmp_path) as changing:
        findings = changing.behind_every_line(change, every=every)
    assert findings.complaints == []
    assert findings.counts["trials"] > 20 / every
