"""Torture: under writers that hurt, every ordering keeps its word."""

import pytest
from harness.ordering_table import ALL, GATED, SEQUENCED_MARIADB, SEQUENCED_SQLITE, for_each
from harness.torture import MIXES, Mix, torture, two_crews
from harness.torture.writers import HURTING

FEW = Mix(hurting=4, fast=2, rest=0.02)


@pytest.fixture(scope="module")
def crews():
    """Two processes of writers."""
    with two_crews() as crews:
        yield crews


@for_each(*ALL, later=(GATED, SEQUENCED_SQLITE, SEQUENCED_MARIADB))
def test_ordering_keeps_its_word_for_a_moment(request, case, crews):
    """Beside a few writers every reader sees every event once, each key in order."""
    url = request.getfixturevalue(f"{case.database}_url")
    verdict = torture(url, case.ordering, crews, seed=0, seconds=0.5, mix=FEW)
    assert verdict.complaints == []


@pytest.mark.test_all
@pytest.mark.parametrize("seed", range(2))
@for_each(*ALL)
def test_ordering_keeps_its_word(request, case, crews, seed):
    """Beside all kinds of writers every reader sees every event once, each key in order."""
    url, mix = request.getfixturevalue(f"{case.database}_url"), MIXES[case.database]
    verdict = torture(url, case.ordering, crews, seed=seed, seconds=5, mix=mix)
    assert verdict.complaints == []
    kinds = {kind.__name__ for kind in HURTING[case.database]}
    assert kinds - {"killed"} <= {*verdict.kinds}
