"""Fixtures of Spark, which all of its tests of one process share."""

import pytest
from harness.archives import s3_store
from harness.spark import spark_session

from zeroeventhub.archive import Archive


@pytest.fixture(scope="session")
def spark():
    """A session of Spark on two cores."""
    with spark_session() as session:
        yield session


@pytest.fixture(params=["folder", "s3"])
def archive(request, tmp_path):
    """An archive whose files are shared: in a folder, or by URLs that a store signs."""
    if request.param == "folder":
        return Archive(tmp_path / "archive", shared=(tmp_path / "archive").as_uri())
    return Archive(s3_store(request.getfixturevalue("s3_url")), shared="signed")


def pytest_collection_modifyitems(items):
    """Bear with the first test of a process, which starts a Java of its own."""
    for item in items:
        if "spark" in item.fixturenames:
            item.add_marker(pytest.mark.timeout(300))
