"""What readers may take at a time, and how often."""

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeroeventhub import Principal, Quota
from zeroeventhub.errors import TooManyRequests
from zeroeventhub.server.quotas import Quotas


class Clock:
    """Be a clock that goes when it is told to."""

    def __init__(self):
        self.now = 1_000_000.0

    def __call__(self):
        return self.now


class Bucket:
    """Hold tokens, in whole numbers: a bucket that fills, from which each request takes one."""

    def __init__(self, rate, burst, now):
        self.rate, self.burst, self.filled, self.at = rate, burst, burst, now

    def take(self, now):
        """Tell whether there is a token, and take it."""
        self.filled = min(self.burst, self.filled + (now - self.at) * self.rate)
        self.at = now
        if self.filled < 1 - 1e-4:
            return False
        self.filled -= 1
        return True


def is_admitted(quotas, principal):
    """Make a request that is over at once."""
    try:
        with quotas.admitted(principal):
            return True
    except TooManyRequests:
        return False


@given(
    st.sampled_from([0.25, 0.5, 1, 2, 4, 8]),
    st.integers(1, 5),
    st.lists(st.integers(0, 64).map(lambda sixteenths: sixteenths / 16), max_size=60),
)
def test_rate_is_that_of_a_bucket_of_tokens(rate, burst, pauses):
    """One number for each reader does what a bucket of tokens does."""
    clock = Clock()
    quotas = Quotas(Quota(rate=rate, burst=burst), clock)
    bucket = Bucket(rate, burst, clock.now)
    for pause in pauses:
        clock.now += pause
        assert is_admitted(quotas, Principal(name="a")) is bucket.take(clock.now)


@given(st.floats(0.01, 1000), st.integers(1, 20))
def test_request_that_comes_when_it_was_told_is_admitted(rate, burst):
    """Whoever waits as long as Retry-After says is let in, and whoever comes sooner is not."""
    clock = Clock()
    quotas, reader = Quotas(Quota(rate=rate, burst=burst), clock), Principal(name="a")
    assert all(is_admitted(quotas, reader) for _ in range(burst))
    with pytest.raises(TooManyRequests) as caught, quotas.admitted(reader):
        pass
    clock.now += caught.value.retry_after / 2
    assert not is_admitted(quotas, reader)
    clock.now += caught.value.retry_after / 2 + 1e-6
    assert is_admitted(quotas, reader)


def test_readers_do_not_share_their_quota():
    """What one takes is not missing to another; who has no quota is not bounded."""
    quotas = Quotas(Quota(rate=1, burst=1, in_flight=1, waiters=1), Clock())
    one, other = Principal(name="a"), Principal(name="b")
    assert [is_admitted(quotas, each) for each in (one, one, other, other)] == [
        *(True, False, True, False)
    ]
    unbounded = Quotas(None, Clock())
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(unbounded.admitted(one))
            stack.enter_context(unbounded.waiting(one))


@pytest.mark.parametrize(("bound", "count"), [("in_flight", "admitted"), ("waiters", "waiting")])
def test_place_is_given_back(bound, count):
    """So many at once and no more; whoever leaves, by an error too, makes room."""
    quotas, reader = Quotas(Quota(**{bound: 2})), Principal(name="a")
    enter = getattr(quotas, count)
    for _ in range(3):
        with ExitStack() as stack:
            stack.enter_context(enter(reader))
            with pytest.raises(ZeroDivisionError), enter(reader):
                with pytest.raises(TooManyRequests), enter(reader):
                    pass
                raise ZeroDivisionError
            with enter(reader):
                pass


def test_refused_request_costs_nothing():
    """A request that is refused does not put off the next one."""
    clock = Clock()
    quotas, reader = Quotas(Quota(rate=1, burst=1, in_flight=1), clock), Principal(name="a")
    with quotas.admitted(reader):
        clock.now += 1
        assert not is_admitted(quotas, reader)
    assert is_admitted(quotas, reader)
    assert [is_admitted(quotas, reader) for _ in range(50)] == [False] * 50
    clock.now += 1
    assert is_admitted(quotas, reader)


def test_readers_who_have_gone_are_forgotten():
    """Memory does not grow with the names that have come and gone; who is here is kept."""
    clock = Clock()
    quotas = Quotas(Quota(rate=100, burst=3, in_flight=5), clock)
    stays = Principal(name="stays", quota=Quota(in_flight=1))
    with quotas.admitted(stays):
        for number in range(20_000):
            clock.now += 0.001
            assert is_admitted(quotas, Principal(name=f"reader {number}"))
            assert len(quotas) <= 200
        assert not is_admitted(quotas, stays)
    assert is_admitted(quotas, stays)
