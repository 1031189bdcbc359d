"""Fixtures of Spark, which all of its tests of one process share."""

import pytest
from harness.spark import spark_session


@pytest.fixture(scope="session")
def spark():
    """A session of Spark on two cores."""
    with spark_session() as session:
        yield session


def pytest_collection_modifyitems(items):
    """Bear with the first test of a process, which starts a Java of its own."""
    for item in items:
        if "spark" in item.fixturenames:
            item.add_marker(pytest.mark.timeout(300))
