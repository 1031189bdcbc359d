"""Drivers that are killed in the middle of a stream: every event is in the rows once."""

import pytest
from harness.spark_kills import killed_streams


@pytest.mark.timeout(600)  # it starts Spark four times
def test_driver_that_is_killed(postgresql_url, tmp_path):
    """A driver that is killed with its JVM at any moment costs no event, and doubles none."""
    findings = killed_streams(postgresql_url, tmp_path, seed=0, kills=3)
    assert findings.complaints == []
    assert findings.counts["events"] > 0
