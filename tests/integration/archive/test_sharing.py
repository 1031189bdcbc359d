"""The URLs by which readers reach the files of an archive."""

from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from harness.archives import made
from obstore.store import S3Store

from zeroeventhub.archive import Archive
from zeroeventhub.errors import ConfigurationError

STORE = S3Store("bucket", region="us-east-1", access_key_id="any", secret_access_key="any")


def test_file_is_named_below_what_stands_before_it(tmp_path):
    """The archive names a file by the URL that it was given; one that shares nothing names none."""
    segment = made(0, 10).segment
    for prefix in ("https://cdn.example/orders", "https://cdn.example/orders/"):
        archive = Archive(tmp_path, shared=prefix)
        assert archive.is_shared
        url = f"https://cdn.example/orders/segments/{segment.name}.parquet"
        assert archive.url(segment) == url
    assert not Archive(tmp_path).is_shared
    with pytest.raises(ConfigurationError, match="not shared"):
        Archive(tmp_path).url(segment)


def test_signed_url_is_good_no_longer_than_its_file_stays():
    """A URL that the store signs ends with its time, or with the grace if that is shorter."""
    for hours, seconds in ((1, 3_600), (72, 7_200)):
        archive = Archive(
            STORE, shared="signed", shared_for=timedelta(hours=hours), grace=timedelta(hours=2)
        )
        asked = parse_qs(urlsplit(archive.url(made(0, 10).segment)).query)
        assert asked["X-Amz-Expires"] == [str(seconds)]


@pytest.mark.parametrize("shared", ["signed", "ftp://cdn.example", "orders", ""])
def test_way_by_which_no_file_is_reached_is_refused(tmp_path, shared):
    """A folder signs no URLs, and files have URLs of three kinds."""
    with pytest.raises(ConfigurationError):
        Archive(tmp_path, shared=shared)
