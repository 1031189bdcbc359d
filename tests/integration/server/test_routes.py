"""The routes of a feed, in other people's applications."""

import httpx
import pytest
from fastapi import FastAPI
from harness.readers import Numbers, fill, page_url
from harness.shop import orders
from harness.web import serving
from sqlalchemy import create_engine
from starlette.applications import Starlette
from starlette.routing import Mount

from zeroeventhub import TableFeed, feed_routes
from zeroeventhub.errors import ConfigurationError

FEED = TableFeed(orders, data="data")


def fastapi_from_the_start(routes):
    """Give the routes to FastAPI when it is made."""
    return FastAPI(routes=routes)


def fastapi_later(routes):
    """Add the routes to a FastAPI application that has its own."""
    application = FastAPI()
    application.router.routes.extend(routes)
    return application


def starlette_mount(routes):
    """Mount the routes below a path of Starlette."""
    return Starlette(routes=[Mount("/api", routes=routes)])


@pytest.mark.parametrize(
    ("build", "prefix"),
    [(fastapi_from_the_start, ""), (fastapi_later, ""), (starlette_mount, "/api")],
)
def test_routes_fit_the_frameworks(sqlite, build, prefix):
    """The same routes work in FastAPI and below a Mount, and answer without a redirect."""
    routes = feed_routes("/orders", FEED, fill(sqlite, 2))
    with serving(build(routes)) as url, httpx.Client(base_url=url + prefix) as session:
        assert session.get("/orders").json()["token"] == "1"
        assert session.head("/orders").status_code == 200
        assert session.get(page_url("/orders")).text.count("data") == 2
        assert session.post("/orders").status_code == 405


def test_paths_and_names_of_routes():
    """Routes lie below their path however it is written, and are found by their names."""
    for path, below in (("/a/b", "/a/b"), ("a/b/", "/a/b"), ("/", "")):
        routes = feed_routes(path, Numbers(), name="shop", server_sent_events=True)
        found = {route.name: route.path for route in routes}
        assert (found["shop"], found["shop:events"]) == (below or "/", f"{below}/events")
        assert found["shop:server-sent-events"] == f"{below}/server-sent-events"


class Plain:
    """A feed of one's own with nothing but pages."""

    info, read = Numbers.info, Numbers.read


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


def test_feed_has_the_routes_that_it_is_given():
    """Without its options a feed has neither of the other ways of reading it."""
    paths = {route.path for route in feed_routes("/", Plain())}
    assert paths.isdisjoint({"/http-feed", "/server-sent-events"})
    assert {"/", "/events", "/progress"} <= paths
