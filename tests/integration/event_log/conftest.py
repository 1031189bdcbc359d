"""A log that tests append to."""

import pytest
from harness.appended import made


@pytest.fixture
def log(engine):
    """A log of eight partitions that has been created, on each database."""
    return made(engine)
