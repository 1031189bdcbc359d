"""What a reader may be said to be, and what it may see by that."""

import math

import pytest

from zeroeventhub import Principal, Quota, TypeFilter
from zeroeventhub.errors import ConfigurationError


@pytest.mark.parametrize("name", [None, 7, b"reader", "a\nb", "a\x00", "a\x1b[0m", "x" * 257])
def test_name_is_a_line_of_text(name):
    """A name that would break a line of the log, or fill it, is refused."""
    with pytest.raises(ConfigurationError, match="name"):
        Principal(name=name)


@pytest.mark.parametrize("partitions", ["01", 1, [True], [-1], [32768], ["0"], [0.0], [None]])
def test_partitions_are_numbers(partitions):
    """Partitions are numbers that a partition may have; nothing is taken for one."""
    with pytest.raises(ConfigurationError, match="partitions"):
        Principal(name="reader", partitions=partitions)


@pytest.mark.parametrize("types", ["placed", 1, [1], [None], b"placed", {"a b"}, {""}, {"å"}])
def test_types_are_names_that_can_be_filtered_by(types):
    """A single name, whose letters would be taken for types, is refused like what is none."""
    with pytest.raises(ConfigurationError):
        Principal(name="reader", types=types)


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


def test_nothing_is_less_than_everything():
    """An empty collection shows nothing, None shows all."""
    everything, nothing = Principal(name="a"), Principal(name="b", partitions=(), types=())
    asked = TypeFilter(frozenset({"paid"}))
    assert (everything.may_read(0), nothing.may_read(0)) == (True, False)
    assert (everything.narrowed(None), everything.narrowed(asked)) == (None, asked)
    for types in (None, asked, TypeFilter(frozenset({"x"}), skip=True)):
        assert not nothing.narrowed(types).lets_through("paid")
        assert not nothing.narrowed(types).lets_through("")


@pytest.mark.parametrize(
    "bounds",
    [
        {"in_flight": 0},
        {"in_flight": 1.5},
        {"in_flight": True},
        {"waiters": -1},
        {"rate": 0},
        {"rate": -1.0},
        {"rate": math.inf},
        {"rate": math.nan},
        {"rate": "5"},
        {"rate": True},
        {"rate": 1, "burst": 0},
        {"burst": 5},
    ],
    ids=str,
)
def test_quota_bounds_something(bounds):
    """A bound that nothing could keep is refused, and a burst without a rate."""
    with pytest.raises(ConfigurationError, match=r"Quota"):
        Quota(**bounds)


def test_quota_is_a_quota():
    """What is no Quota is not taken for one."""
    with pytest.raises(ConfigurationError, match="quota"):
        Principal(name="reader", quota=5)


@pytest.mark.parametrize(("rate", "burst"), [(0.1, 1), (1, 1), (2.5, 3), (100, 100)])
def test_burst_is_a_seconds_worth_by_default(rate, burst):
    """Where only the rate is said, as many requests may come at once as in a second."""
    assert Quota(rate=rate).burst == burst
