import pytest

from zeroeventhub.server.incidents import AGAIN, MOST, PAUSE, Incidents


class Clock:
    """A clock that is set by hand."""

    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    """A clock that is set by hand."""
    return Clock()


@pytest.fixture
def incidents(clock):
    """Incidents that go by it."""
    return Incidents(clock)


def test_cause_is_told_once(incidents):
    """What happens a thousand times is told the first time."""
    assert [incidents.happened("down") for _ in range(1000)] == [1, *[None] * 999]
    assert incidents.happened("another") == 1


def test_cause_that_goes_on_is_told_again_with_its_number(incidents, clock):
    """After five minutes what has gone on is told with how often it has happened since."""
    incidents.happened("down")
    for _ in range(7):
        incidents.happened("down")
    clock.now += AGAIN - 1
    assert incidents.happened("down") is None
    clock.now += 1
    assert incidents.happened("down") == 9
    assert incidents.happened("down") is None


def test_cause_that_comes_back_is_told_again(incidents, clock):
    """What was over and happens again is told, with what was not told before."""
    incidents.happened("down")
    incidents.happened("down")
    incidents.over()
    clock.now += PAUSE
    assert incidents.happened("down") == 2
    assert incidents.happened("down") is None


def test_cause_that_comes_and_goes_is_told_now_and_then(incidents, clock):
    """Where every other request fails, what they fail by is told every ten seconds at most."""
    told = []
    for _ in range(1000):
        clock.now += 0.1
        told.append(incidents.happened("one bad row"))
        incidents.over()
    assert 8 <= len([times for times in told if times]) <= 11
    assert sum(filter(None, told)) >= 900


def test_causes_are_forgotten_when_there_are_too_many(incidents):
    """The one that has been silent for the longest goes first."""
    incidents.happened("first")
    for number in range(MOST - 1):
        incidents.happened(number)
    assert incidents.happened("first") is None
    incidents.happened("one too many")
    assert incidents.happened("first") is None
    assert incidents.happened(0) == 1
    assert len(incidents) == MOST
