"""Partitions that change between any two lines: each event once, and each key in its order."""

import pytest
from harness.faults.layouts import CHANGES, Changing


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_partitions_change_behind_every_line(change, tmp_path):
    """Wherever the token is rotated or a partition split or handed on, the consumer goes on."""
    with Changing.open(tmp_path) as changing:
        findings = changing.behind_every_line(change)
    assert findings.complaints == []
    assert findings.counts["trials"] > 20
