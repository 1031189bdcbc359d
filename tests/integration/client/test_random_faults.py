"""Drawn events, read through drawn faults: nothing is lost, and nothing takes effect twice."""

import pytest
from harness.faults.account import Account
from harness.faults.answer import Framing
from harness.faults.findings import Findings
from harness.faults.proxied import Proxied
from harness.faults.random_faults import Trials

SEEDS = range(80)


@pytest.mark.parametrize("framing", Framing)
def test_random_faults_lose_and_repeat_nothing(framing, tmp_path):
    """Whatever happens to connections, one time after the other, each event takes effect once."""
    account, findings = Account(tmp_path / "consumer.db"), Findings()
    with Trials.open(account) as trials:
        for seed in SEEDS:
            findings.add(trials.run(seed, framing))
    account.dispose()
    assert findings.complaints == []


def test_random_faults_before_a_real_server(tmp_path):
    """The same holds for connections that stay open between requests to a real server."""
    account, findings = Account(tmp_path / "consumer.db"), Findings()
    with Proxied.open(account, tmp_path) as proxied:
        for seed in SEEDS[:25]:
            findings.add(proxied.run(seed))
    account.dispose()
    assert findings.complaints == []
