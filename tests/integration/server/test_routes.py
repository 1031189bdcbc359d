"""The routes of a feed: where they lie, and what a feed needs for them."""

import pytest
from harness.readers import Numbers
from harness.shop import orders
from sqlalchemy import create_engine

from zeroeventhub import TableFeed, feed_routes
from zeroeventhub.errors import ConfigurationError

FEED = TableFeed(orders, data="data")


class Plain:
    """A feed of one's own with nothing but pages."""

    info, read = Numbers.info, Numbers.read


def test_paths_and_names_of_routes():
    """Routes lie below their path, are found by their names, and are only those asked for."""
    for path, below in (("/a/b", "/a/b"), ("a/b/", "/a/b"), ("/", "")):
        routes = feed_routes(path, Numbers(), name="shop", server_sent_events=True)
        found = {route.name: route.path for route in routes}
        assert (found["shop"], found["shop:events"]) == (below or "/", f"{below}/events")
        assert found["shop:server-sent-events"] == f"{below}/server-sent-events"
    paths = {route.path for route in feed_routes("/", Plain())}
    assert paths.isdisjoint({"/http-feed", "/server-sent-events"})
    assert {"/", "/events", "/progress"} <= paths


@pytest.mark.parametrize(
    ("arguments", "options", "match"),
    [
        ((FEED,), {}, "give its engine"),
        ((Plain(), create_engine("sqlite://")), {}, "give no engine"),
        ((object(),), {}, "is not a feed"),
        ((Plain(),), {"http_feed": True}, "cursor_of"),
        ((Plain(),), {"server_sent_events": True}, "head"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, options, match):
    """A feed that cannot do what its routes need is refused when it is mounted."""
    with pytest.raises(ConfigurationError, match=match):
        feed_routes("/", *arguments, **options)
