"""What a TableFeed adds to its database, and takes back."""

from harness.shop import metadata, orders
from sqlalchemy import inspect

from zeroeventhub import TableFeed
from zeroeventhub.publisher.progress import Progress
from zeroeventhub.publisher.retention import Retention


def test_feed_is_installed_once_and_what_was_trimmed_outlives_it(engine):
    """To install again changes nothing; to uninstall keeps the events and the mark."""
    metadata.create_all(engine)
    before = {*inspect(engine).get_table_names()}
    feed = TableFeed(
        orders, data="data", ordering="sequenced", retention=Retention(), progress=Progress()
    )
    with engine.begin() as connection:
        assert not feed.has_mark(connection)
        feed.install(connection)
    installed = {*inspect(engine).get_table_names()}
    kept = {"zeroeventhub_retention", "zeroeventhub_progress"}
    assert before | kept < installed
    with engine.begin() as connection:
        feed.install(connection)
        assert feed.has_mark(connection)
        assert not TableFeed(orders, data="data").has_mark(connection)
    assert {*inspect(engine).get_table_names()} == installed
    with engine.begin() as connection:
        feed.uninstall(connection)
        assert feed.has_mark(connection)
    assert {*inspect(engine).get_table_names()} == before | kept
