"""Publishers killed while they answer, directly and behind nginx: no cut answer is a whole one."""

import pytest
from harness.faults.findings import Findings
from harness.faults.killed_publisher import Killed
from harness.faults.publishers import PARSERS
from harness.nginx_paths import Deployment


@pytest.mark.parametrize("deployment", Deployment)
def test_publisher_that_is_killed_while_it_sends(deployment, tmp_path):
    """A publisher killed at any byte and any moment costs time, and no event, however deployed."""
    findings = Findings()
    with Killed.open(deployment, tmp_path) as killed:
        for seed in range(3):
            findings.add(killed.run(seed))
    assert findings.complaints == []
    assert findings.counts["CutPage"] > 5
    assert findings.counts["kills"] > 10


def test_both_parsers_are_tested():
    """Publishers speak HTTP by either parser that uvicorn has."""
    assert PARSERS == ("h11", "httptools")
