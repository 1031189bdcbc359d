"""Fixtures of Spark, which all of its tests of one process share."""

import pytest
from harness.spark import spark_session


@pytest.fixture(scope="session")
def spark():
    """A session of Spark on two cores."""
    with spark_session() as session:
        yield session
