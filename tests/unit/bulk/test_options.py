"""Options of a read: moments of partitions, and the origins of files."""

from datetime import UTC, datetime

import pytest

from zeroeventhub.bulk.options import Moments, origin_of
from zeroeventhub.errors import ConfigurationError

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


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


def test_partition_without_a_moment_is_refused():
    """A partition has its own moment, else the one of all; without either the read is refused."""
    assert Moments(NOON, {}).of(1) == Moments(None, {1: NOON}).of(1) == NOON
    with pytest.raises(ConfigurationError, match="no time for partition 2"):
        Moments(None, {1: NOON}).of(2)
