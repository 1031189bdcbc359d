"""A publisher that misbehaves, for the tests of the room."""

import pytest

from zeroeventhub.conformance.misbehaving import misbehaving


@pytest.fixture(scope="module")
def scenarios_url():
    """The URL of a publisher that misbehaves."""
    with misbehaving() as url:
        yield url
