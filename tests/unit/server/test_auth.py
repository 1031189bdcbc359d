"""Principals and their quotas: what may be said of them, and how long they are remembered."""

import math

import pytest

from zeroeventhub import AppendRight, Principal, Quota, TypeFilter
from zeroeventhub.errors import ConfigurationError, TooManyRequests
from zeroeventhub.server.auth import Quotas

WRONG = {
    "name": [None, 7, b"reader", "a\nb", "a\x00", "a\x1b[0m", "a ", "x" * 257],
    "partitions": ["01", 1, [True], [-1], [32768], ["0"], [0.0], [None]],
    "types": ["placed", 1, [1], [None], b"placed", {"order.*"}, {""}, {"å"}],
    "quota": [5],
}


@pytest.mark.parametrize("field", WRONG)
def test_malformed_permission_is_refused(field):
    """What would break a line of the log, or could be taken for more than was meant, is refused."""
    for value in WRONG[field]:
        with pytest.raises(ConfigurationError):
            Principal(**{"name": "reader", field: value})


@pytest.mark.parametrize(
    "right",
    [{"types": "placed"}, {"types": 1}, {"keys": {7}}, {"keys": [None]}, {"partitions": {"0"}}],
)
def test_right_that_would_allow_nothing_is_refused(right):
    """A right to append to what no event can have is refused when it is made."""
    with pytest.raises(ConfigurationError, match=f"The {next(iter(right))} of an AppendRight"):
        AppendRight(**right)


def test_collections_are_kept_as_they_were():
    """What was given may change afterwards; the rights do not."""
    partitions, types = {0}, ["paid"]
    principal = Principal(name="reader", partitions=partitions, types=types)
    partitions.add(1)
    types.append("placed")
    assert (principal.may_read(0), principal.may_read(1)) == (True, False)
    assert principal.narrowed(None) == TypeFilter(frozenset({"paid"}))
    assert principal == Principal(name="reader", partitions=[0], types={"PAID"})
    assert hash(principal) == hash(Principal(name="reader", partitions=[0], types={"PAID"}))


def test_empty_collection_permits_nothing():
    """An empty collection shows nothing, None shows all."""
    everything, nothing = Principal(name="a"), Principal(name="b", partitions=(), types=())
    asked = TypeFilter(frozenset({"paid"}))
    assert (everything.may_read(0), nothing.may_read(0)) == (True, False)
    assert (everything.narrowed(None), everything.narrowed(asked)) == (None, asked)
    for types in (None, asked, TypeFilter(frozenset({"x"}), skip=True)):
        assert not nothing.narrowed(types).lets_through("paid")
        assert not nothing.narrowed(types).lets_through("")


def test_quota_bounds_something():
    """A bound that nothing could keep is refused, and a burst without a rate."""
    wrong = [{"in_flight": bound} for bound in (0, 1.5, True)] + [{"waiters": -1}, {"burst": 5}]
    wrong += [{"rate": rate} for rate in (0, -1.0, math.inf, math.nan, "5", True)]
    for bounds in [*wrong, {"rate": 1, "burst": 0}]:
        with pytest.raises(ConfigurationError, match=r"Quota"):
            Quota(**bounds)


def test_readers_who_owe_nothing_are_forgotten(monkeypatch):
    """However many names occur, only accounts with requests in flight or a due time are kept."""
    now = [0.0]
    monkeypatch.setattr("zeroeventhub.server.auth.monotonic", lambda: now[0])
    quotas = Quotas(Quota(rate=1, burst=1))
    held = Principal(name="held", quota=Quota(in_flight=1))
    hasty = Principal(name="hasty", quota=Quota(rate=0.00001, burst=1))
    quotas.count(held)
    quotas.count(hasty).in_flight -= 1
    for number in range(10_000):
        now[0] += 1
        quotas.count(Principal(name=f"reader {number}")).in_flight -= 1
    assert len(quotas.accounts) <= 2_000
    for reader in (held, hasty):
        with pytest.raises(TooManyRequests):
            quotas.count(reader)


def test_reader_is_admitted_as_often_as_its_rate_says(monkeypatch):
    """After a burst one request is due each interval; a refusal says when, and delays nothing."""
    now, reader = [0.0], Principal(name="reader")
    monkeypatch.setattr("zeroeventhub.server.auth.monotonic", lambda: now[0])
    quotas = Quotas(Quota(rate=1, burst=2))
    for _ in range(2):
        quotas.count(reader).in_flight -= 1
    for moment in (1.0, 2.0):
        for early in (0.5, 0.25, 0.125):
            now[0] = moment - early
            with pytest.raises(TooManyRequests) as refused:
                quotas.count(reader)
            assert refused.value.retry_after == pytest.approx(early)
        now[0] = moment
        quotas.count(reader).in_flight -= 1


def test_reader_with_a_name_has_a_quota_by_default():
    """A reader with a name has at most 1,000 requests in flight; anonymous ones have no limit."""
    quotas = Quotas(None)
    for name, count in (("reader", 1_000), ("", 3_000)):
        for _ in range(count):
            quotas.count(Principal(name=name))
    with pytest.raises(TooManyRequests):
        quotas.count(Principal(name="reader"))
