"""The age of a horizon, against a model that remembers every reading."""

from hypothesis import given
from hypothesis import strategies as st

from zeroeventhub.publisher.horizon_monitor import FINENESS, HorizonAge

steps = st.lists(
    st.tuples(
        st.floats(0.001, 100.0),  # seconds since the reading before
        st.integers(0, 3),  # numbers drawn meanwhile
        st.integers(0, 3),  # numbers settled meanwhile, at most
    ),
    max_size=60,
)


@given(steps)
def test_age_is_that_of_the_oldest_number_that_is_not_settled(steps):
    """It is exact but for a hundredth of the time that was watched, and never too high."""
    age, readings, now, drawn, settled = HorizonAge(), [], 0.0, 0, 0
    for seconds, more, done in steps:
        now, drawn = now + seconds, drawn + more
        settled = min(drawn, settled + done)
        readings.append((drawn, now))
        found = age.read(settled, drawn, now)
        first = min((when for number, when in readings if number > settled), default=now)
        exact = now - first
        assert exact - (now - readings[0][1]) / FINENESS <= found + 1e-9 <= exact + 2e-9
        assert (found == 0) == (exact == 0)


def test_what_is_remembered_stays_small():
    """Ten thousand readings beside one open writer leave a few hundred to remember."""
    age = HorizonAge()
    for number in range(1, 10_001):
        found = age.read(0, number, float(number))
    assert found == 9_999
    assert len(age.seen) < 15 * FINENESS


def test_numbers_that_start_again_are_new():
    """What was drawn before a sequence was set back says nothing of what is drawn after."""
    age = HorizonAge()
    age.read(50, 90, 100.0)
    assert age.read(0, 2, 160.0) == 0
    assert age.read(0, 2, 170.0) == 10


def test_overtaken_reading_takes_nothing_back():
    """A reading that another has overtaken leaves the oldest number where it is."""
    age = HorizonAge()
    age.read(0, 1, 100.0)
    age.read(0, 9, 150.0)
    assert age.read(0, 8, 151.0) == 51
    assert age.read(0, 9, 152.0) == 52


def test_what_another_process_has_seen_counts():
    """A number ages from when any process has seen it, until it is settled or was never drawn."""
    first, second = HorizonAge(), HorizonAge()
    first.read(0, 5, 100.0)
    assert second.read(0, 7, 130.0) == 0
    second.learn(*first.oldest)
    assert second.read(0, 7, 140.0) == 40
    second.learn(8, 150.0)
    assert second.read(5, 7, 160.0) == 30
    first.learn(*second.oldest)
    assert first.read(0, 7, 170.0) == 70
    second.learn(9, 90.0)
    assert second.read(5, 9, 180.0) == 90
    assert second.read(5, 8, 190.0) == 0
