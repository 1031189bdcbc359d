"""Options of a read: the origins of files."""

import pytest

from zeroeventhub.bulk.options import origin_of


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://cdn.example/a/b?c=d", "https://cdn.example:443"),
        ("http://CDN.example:80", "http://cdn.example:80"),
        ("file:///srv/archive/a.parquet", "file://"),
    ],
)
def test_origin_is_scheme_host_and_port(url, origin):
    """URLs of one server have one origin, and all files of this machine."""
    assert origin_of(url) == origin
