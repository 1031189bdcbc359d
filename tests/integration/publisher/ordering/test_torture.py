"""Torture: under writers that hurt, every ordering keeps its word, and every mutant is caught."""

import pytest
from harness.ordering_table import ALL, GATED, SEQUENCED_MARIADB, SEQUENCED_SQLITE, for_each
from harness.torture.round import MUTANTS, Tally, WatchedFeed, torture
from harness.torture.writers import HURTING, LIGHT, MIXES, Mix, events

from zeroeventhub.errors import Unavailable

FEW = Mix(hurting=4, fast=2, rest=0.02)

CATCHING = 100
"""Seconds after which a mutant has got away; it errs by chance, and mostly within a few."""

PATIENT = {
    ("postgresql", "sequenced", "low mark that waits for no writer"),
    ("mariadb", "observed", "prepared transactions forgotten"),
}
"""Mutants that err too seldom to be caught in a second."""


@pytest.mark.slow
@for_each(*ALL, later=(GATED, SEQUENCED_SQLITE, SEQUENCED_MARIADB))
def test_ordering_keeps_its_word_for_a_moment(request, case):
    """Beside a few writers every reader sees every event once, each key in order."""
    url = request.getfixturevalue(f"{case.database}_url")
    verdict = torture(url, case.ordering, seed=0, seconds=0.5, mix=FEW)
    assert verdict.complaints == []


@pytest.mark.test_all
@pytest.mark.parametrize("seed", range(2))
@for_each(*ALL)
def test_ordering_keeps_its_word(request, case, seed):
    """Beside all kinds of writers every reader sees every event once, each key in order."""
    url, mix = request.getfixturevalue(f"{case.database}_url"), MIXES[case.database]
    missing = {kind.__name__ for kind in HURTING[case.database]} - {"killed"}
    for again in range(3):  # a slow machine does not come to all of them in one run
        number = seed + 100 * again
        verdict = torture(url, case.ordering, seed=number, seconds=5, mix=mix)
        assert verdict.complaints == []
        missing -= {*verdict.kinds}
        if not missing:
            break
    assert not missing


@pytest.mark.slow
@pytest.mark.parametrize(
    ("database", "ordering", "mutant"),
    [
        pytest.param(*mutant, marks=[pytest.mark.test_all] if mutant in PATIENT else [])
        for mutant in MUTANTS
    ],
)
def test_mutant_is_caught(request, database, ordering, mutant):
    """An ordering with one thing wrong loses, repeats, moves or inverts events, and is caught."""
    url, spoil = request.getfixturevalue(f"{database}_url"), MUTANTS[database, ordering, mutant]
    verdict = torture(url, ordering, seed=0, seconds=CATCHING, mix=LIGHT, spoil=spoil)
    assert verdict.counts.keys() & {"lost", "twice", "inverted", "diverged"}


def test_tally_tells_what_is_wrong():
    """An event passed over is lost until it comes; then it is inverted, and after that twice."""
    tally = Tally()
    for n in (1, 2, 5, 4, 4):
        tally.see(7, n)
    assert (tally.lost(), tally.inverted, tally.twice) == (1, 1, 1)
    assert (tally.ahead({7: 9}), tally.invented({7: 4})) == (4, 1)
    assert tally.examples[0] == "event 5 of key 7 came behind event 2"


def test_watch_notices_a_horizon_that_goes_back():
    """A feed that has answered once neither goes back nor falls silent."""
    answers = iter([5, 3, Unavailable("Not now.", retry_after=1)])

    class Wavering:
        def head(self):
            if isinstance(answer := next(answers), Unavailable):
                raise answer
            return answer

    feed = WatchedFeed(events, Wavering())
    for _ in range(3):
        feed.look()
    assert feed.went_back == ["5 to 3"]
    assert len(feed.fell_silent) == 1
