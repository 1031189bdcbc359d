"""How long a feed remembers its readers' shares."""

import pytest

from zeroeventhub import Principal, Quota
from zeroeventhub.errors import TooManyRequests
from zeroeventhub.server.auth import Quotas


def test_readers_who_owe_nothing_are_forgotten():
    """However many names come by, only those are kept of whom something is under way or owed."""
    now = [0.0]
    quotas = Quotas(Quota(rate=1, burst=1), clock=lambda: now[0])
    stays = quotas.admitted(Principal(name="stays"))
    for number in range(10_000):
        now[0] += 1
        with quotas.admitted(Principal(name=f"reader {number}")):
            pass
    assert len(quotas) <= 2_000
    stays.end()


def test_reader_with_a_name_has_a_quota_where_nobody_says_one():
    """A reader with a name has at most 1,000 requests under way; others have no limit."""
    quotas = Quotas(None)
    for name, count in (("reader", 1_000), ("", 3_000)):
        for _ in range(count):
            quotas.admitted(Principal(name=name))
    with pytest.raises(TooManyRequests):
        quotas.admitted(Principal(name="reader"))
