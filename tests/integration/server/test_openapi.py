"""The OpenAPI document and a publisher, held against each other in both directions."""

import json
import runpy
from dataclasses import replace
from itertools import count
from zlib import crc32

import pytest
import schemathesis
import yaml
from harness.shop import metadata, orders, place
from harness.vectors import SPECIFICATION
from harness.web import serving
from hypothesis import HealthCheck, settings
from schemathesis import checks
from schemathesis.specs.openapi import checks as openapi_checks
from sqlalchemy import MetaData, create_engine
from starlette.applications import Starlette

from zeroeventhub import EventLog, TableFeed, errors, feed_routes
from zeroeventhub.publisher.progress import Progress

DOCUMENT = yaml.safe_load((SPECIFICATION / "openapi.yaml").read_text())
PROBLEM = json.loads((SPECIFICATION / "schemas" / "problem.json").read_text())

schema = schemathesis.openapi.from_path(SPECIFICATION / "openapi.yaml")
CHECKS = [
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_headers_conformance,
    openapi_checks.response_schema_conformance,
    openapi_checks.unsupported_method,
    openapi_checks.allow_header_conformance,
]


@schemathesis.deserializer("application/x-ndjson")
def lines_of(context, response):
    """Read lines as the list that the document's schema is for."""
    assert response.content.endswith(b"\n")
    return [json.loads(line) for line in response.content.split(b"\n")[:-1]]


@schemathesis.deserializer("application/cloudevents-batch+json", "application/problem+json")
def json_of(context, response):
    """Read JSON by another name."""
    return json.loads(response.content)


@schemathesis.serializer("application/x-ndjson")
def lines_from(context, value):
    """Write a list as lines; anything else, which is no batch, as it is."""
    lines = value if isinstance(value, list) else [value]
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


@schemathesis.serializer("application/cloudevents-batch+json")
def json_from(context, value):
    """Write JSON by another name."""
    return json.dumps(value).encode()


class Restless:
    """A feed whose token is another at each look, so that every stream of it ends."""

    def __init__(self, feed):
        self._feed = feed
        self._looks = count()

    def __getattr__(self, name):
        """Be the feed in all else, but for what would be known of it without a look."""
        if name == "known_info":
            raise AttributeError(name)
        return getattr(self._feed, name)

    def info(self):
        return replace(self._feed.info(), token=str(next(self._looks)))


@pytest.fixture(scope="module")
def publisher(tmp_path_factory):
    """The URL of a publisher of two feeds, and cursors of the first."""
    engine = create_engine(f"sqlite:///{tmp_path_factory.mktemp('openapi') / 'test.db'}")
    metadata.create_all(engine)
    source = TableFeed(
        orders,
        partition="part",
        partitions=2,
        data="data",
        type="kind",
        time="placed",
        headers={"customer": "customer"},
        cloudevents=True,
        progress=Progress(),
        schemas={"order.placed": {"type": "object"}},
    )
    with engine.begin() as connection:
        source.install(connection)
        place(connection, 30, partitions=2)
    feed = source.bind(engine)
    log = EventLog(MetaData(), "events", append=True)
    log.table.metadata.create_all(engine)
    routes = [
        *all_routes("/feed", feed),
        *all_routes("/restless/feed", Restless(feed)),
        *all_routes("/log/feed", log.feed(cloudevents=True).bind(engine)),
    ]
    cursors = [feed.read(0, "_first", limit).cursor for limit in (1, 5, 100)]
    with serving(Starlette(routes=routes)) as url:
        yield url, cursors
    engine.dispose()


def all_routes(path, feed):
    """All routes that a feed can have."""
    return feed_routes(path, feed, http_feed=True, server_sent_events=True, arrow=True)


def documented(path, method):
    """Make the test of an operation; of tests with one name, pytest-xdist runs only one."""

    @schema.include(path=path, method=method).parametrize()
    @settings(
        max_examples=3,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    def test(publisher, case):
        """Whatever is asked, the answer is one that the document has."""
        url, cursors = publisher
        case.query = filled(case.query, cursors)
        if case.path.endswith("/server-sent-events"):
            url = f"{url}/restless"
        elif case.path.endswith("/append"):
            url = f"{url}/log"
        response = case.call(base_url=url)
        case.validate_response(response, checks=[checks.not_a_server_error, *CHECKS])
        assert case.method != "HEAD" or response.content == b""

    return test


for path, item in DOCUMENT["paths"].items():
    for method in sorted({"delete", "get", "head", "post", "put"} & item.keys()):
        globals()[f"test_{method}_{path.rpartition('/')[2]}"] = documented(path, method.upper())


def ask(url, path, query, headers=None):
    """Ask for one thing, and see that the answer is documented."""
    case = schema[path]["GET"].Case(query=query, headers=headers or {})
    response = case.call(base_url=url)
    case.validate_response(response, checks=CHECKS)
    return response


def test_page_of_each_kind_is_answered_as_documented(publisher):
    """Pages of either version, pages that may be or were kept, and Arrow pages are documented."""
    url, (cursor, *_) = publisher
    query = {"n": 2, "cursor0": "_first", "cursor1": cursor, "headers": "_all"}
    assert b'"headers"' in ask(url, "/feed", query).content
    query = {"token": "2", "partition": 0, "cursor": cursor, "pagesizehint": 1}
    (tag,) = ask(url, "/feed/events", query).headers["etag"]
    answer = ask(url, "/feed/events", query, {"If-None-Match": tag})
    assert (answer.status_code, answer.content) == (304, b"")
    arrow = "application/vnd.apache.arrow.stream"
    assert ask(url, "/feed/events", query, {"Accept": arrow}).headers["content-type"] == [arrow]


def filled(query, cursors):
    """Fill in now and then what cannot be guessed, and wait for no longer than a test should."""
    chance = crc32(repr(query).encode())
    likely = {
        "token": ["2"] * 5,
        "partition": ["0", "1", "0", "1"],
        "n": ["2"] * 4,
        "cursor": [*cursors, "_last", "2-1-0000-0000000000"],
        "cursor0": cursors,
        "stop": cursors,
        "pagesizehint": ["1", "4"],
        "lastEventId": ["1", "29"],
        "type": ["order.placed"],
    }
    replaced = {}
    for number, (name, value) in enumerate(query.items()):
        choice = dict(enumerate(likely.get(name, []))).get((chance >> 3 * number) % 6, value)
        if name in {"wait", "timeout"} and str(value)[:1].isdigit():
            choice = "".join("0" if digit in "123456789" else digit for digit in str(value))
        replaced[name] = choice
    return replaced


def test_every_route_is_documented_and_every_path_is_a_route():
    """The document's paths are the routes of a feed, with the methods that they answer."""
    engine = create_engine("sqlite://")
    routes = feed_routes(
        "/feed", TableFeed(orders), engine, http_feed=True, server_sent_events=True
    )
    methods = {"get", "head", "post", "put", "delete", "patch", "options", "trace"}
    documented = {
        path: {method.upper() for method in item.keys() & methods}
        for path, item in DOCUMENT["paths"].items()
    }
    assert {route.path: set(route.methods) for route in routes} == documented


def test_every_extension_is_documented_as_its_row_says():
    """The document has what `python spec/openapi.py` writes of the rows of extensions."""
    text = (SPECIFICATION / "openapi.yaml").read_text()
    assert runpy.run_path(str(SPECIFICATION / "openapi.py"))["written"](text) == text


def problem_kinds(base=errors.FeedError):
    """All kinds of problems that errors stand for, with their statuses."""
    for error in base.__subclasses__():
        yield from problem_kinds(error)
        if error.__module__ == errors.__name__:  # a test may have one of its own
            yield error.problem, error.status
    if base is errors.FeedError:
        yield from [("unavailable", 503), ("too-many-requests", 429), ("failed", 500)]
        yield from [("conflict", 409), ("id-reused", 409), ("storage-full", 507)]


def test_every_kind_of_problem_is_documented_with_its_status():
    """The problem schema has all kinds of errors, and each answer stands under its status alone."""
    types = {f"urn:zeroeventhub:problem/{kind}" for kind, _ in problem_kinds()}
    assert types == set(PROBLEM["properties"]["type"]["enum"])
    text = (SPECIFICATION / "SPEC.md").read_text()
    for kind, status in problem_kinds():
        (row,) = [line for line in text.splitlines() if f"| `{kind}` |" in line]
        assert str(status) in row
        statuses = {
            code
            for path in DOCUMENT["paths"].values()
            for method in ("get", "put", "post")
            for code, answer in path.get(method, {"responses": {}})["responses"].items()
            if f"urn:zeroeventhub:problem/{kind}" in kinds_of(answer)
        }
        assert statuses == {str(status)}, kind
        answers = (("/feed/events", "get"), ("/feed/append", "post"))
        assert any(
            str(status) in DOCUMENT["paths"][path][verb]["responses"] for path, verb in answers
        )


def kinds_of(answer):
    """The types of problems that an answer of the document may have."""
    answer = DOCUMENT["components"]["responses"].get(answer.get("$ref", "").rpartition("/")[2], {})
    content = answer.get("content", {}).get("application/problem+json")
    if content is None:
        return []
    kind = content["schema"]["allOf"][1]["properties"]["type"]
    return kind.get("enum", [kind.get("const")])
