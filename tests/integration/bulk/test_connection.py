"""The connection of a read: which files it reads."""

from contextlib import closing

import pytest

from zeroeventhub import Client
from zeroeventhub.bulk.connection import Connection
from zeroeventhub.bulk.options import ReadOptions
from zeroeventhub.errors import ConfigurationError


def test_signed_addresses_of_a_store_are_read():
    """An HTTPS URL with a signature of an object store is allowed, and any of the feed's origin."""
    feed = Client("https://shop.example/orders")
    with closing(Connection(feed, ReadOptions())) as connection:
        assert connection.client_for("https://shop.example:443/x")
        for signature in ("X-Amz-Signature=1", "sv=1&sig=2", "X-Goog-Signature=3"):
            assert connection.client_for(f"https://bucket.example/x?{signature}")
            with pytest.raises(ConfigurationError, match="segment_origins"):
                connection.client_for(f"http://169.254.169.254/x?{signature}")
