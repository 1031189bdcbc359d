"""Fixtures that every test may use, and what a run says of itself."""

import gc
import logging
import os
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from weakref import WeakSet

import httpx
import pytest
import trustme
from harness import exchanges
from harness.databases import mariadb_server, new_database, postgresql_server
from harness.engines import async_url as as_async
from harness.engines import connected
from harness.shop import metadata
from hypothesis import settings
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import StaticPool
from xdist.scheduler import LoadScopeScheduling

# The same examples in every run, so that no run fails by chance; `make test-all` draws others.
settings.register_profile("seeded", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("quick", settings.get_profile("seeded"), max_examples=20)
settings.register_profile("random", deadline=None, print_blob=True)
settings.load_profile("seeded")

EVERY_DATABASE = ["sqlite", "postgresql", "mariadb"]
"""For what is written in SQL that databases understand differently."""

ANY_DATABASE = [
    "sqlite",
    pytest.param("postgresql", marks=pytest.mark.test_all),
    pytest.param("mariadb", marks=pytest.mark.test_all),
]
"""For what is the same on every database: one in `make test`, the rest in `make test-all`."""


class _Scheduling(LoadScopeScheduling):
    """Hand out tests one by one, but for those that share a Java or a browser."""

    def _split_scope(self, nodeid):
        return next(
            (shared for start, shared in SHARED.items() if nodeid.startswith(start)), nodeid
        )


SHARED = {"tests/integration/spark/": "Java", "tests/acceptance/test_console.py": "browser"}
"""What the tests of these names share, each in one process."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Divide tests between processes."""
    return _Scheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """Choose how many processes run tests: one more than cores, because tests wait a lot."""
    return min((os.cpu_count() or 1) + 1, 5)


SERVERS = ("postgresql", "mariadb", "primary", "spark", "s3", "nginx", "peer")
"""How the names of fixtures and cases begin that need more than Python."""


def pytest_addoption(parser):
    """Add what `make quick` and `make screenshots` ask for."""
    parser.addoption("--quick", action="store_true", help="neither slow tests nor servers")
    parser.addoption("--screenshots", action="store_true", help="take those of docs/console.md")


def pytest_collection_modifyitems(config, items):
    """Leave out what is not quick, where it is asked for."""
    assert len({item.nodeid for item in items}) == len(items), "of one name only one test is run"
    if config.getoption("--quick"):
        left_out = [item for item in items if not _is_quick(item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if _is_quick(item)]


def _is_quick(item):
    case = item.callspec.id.split("-") if hasattr(item, "callspec") else []
    needs_server = any(name.startswith(SERVERS) for name in (*item.fixturenames, *case))
    return not needs_server and not item.get_closest_marker("slow")


@pytest.hookimpl(hookwrapper=True)
def pytest_collection():
    """Spare the garbage collector what is imported and collected: all of it stays to the end."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _few_certificates(tmp_path_factory):
    """Let clients trust one certificate: loading all of the machine's takes 40 ms a client."""
    file = tmp_path_factory.mktemp("certificates") / "ca.pem"
    trustme.CA().cert_pem.write_to_path(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(file))
        yield


@pytest.fixture(scope="session", autouse=True)
def _patience():
    """Let requests that tests send themselves wait for a busy machine; httpx waits for 5 s."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("get", "head", "post", "put", "request", "stream"):
            patch.setattr(httpx, name, partial(getattr(httpx, name), timeout=30))
        for client in (httpx.Client, httpx.AsyncClient):
            patch.setattr(client, "__init__", _with_patience(client.__init__))
        yield


def _with_patience(make):
    def init(client, **options):
        make(client, **{"timeout": 30, **options})

    return init


def _on_server(kind, server):
    """Make fixtures: the URL of a server of one kind, and that of an empty database on it."""

    @pytest.fixture(scope="session", name=f"{kind}_server_url")
    def server_url():
        with server() as url:
            yield url

    @pytest.fixture(name=f"{kind}_url")
    def url(request):
        with new_database(request.getfixturevalue(f"{kind}_server_url")) as url:
            yield url

    return server_url, url


postgresql_server_url, postgresql_url = _on_server("postgresql", postgresql_server)
mariadb_server_url, mariadb_url = _on_server("mariadb", mariadb_server)


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    """An empty folder, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def sqlite_url(tmp_path):
    """The URL of an SQLite database that does not exist yet."""
    return f"sqlite:///{tmp_path / 'test.db'}"


@pytest.fixture(params=EVERY_DATABASE)
def database_url(request):
    """The URL of an empty database, on each database in turn."""
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture(params=ANY_DATABASE)
def any_database_url(request):
    """The URL of an empty database of any kind."""
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture(scope="module")
def memory():
    """An engine of an SQLite database in memory, with a table of orders that examples share."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def engine(database_url):
    """An engine of an empty database, on each database in turn."""
    with connected(database_url) as engine:
        yield engine


@pytest.fixture
def any_engine(any_database_url):
    """An engine of an empty database of any kind."""
    with connected(any_database_url) as engine:
        yield engine


def _engine_of(database):
    """Make a fixture: an engine of an empty database of one kind."""

    @pytest.fixture(name=database)
    def engine(request):
        with connected(request.getfixturevalue(f"{database}_url")) as engine:
            yield engine

    return engine


sqlite, postgresql, mariadb = map(_engine_of, EVERY_DATABASE)


@pytest.fixture
def async_url(database_url):
    """The same database's URL for an async engine."""
    return as_async(database_url)


@pytest.fixture
def anyio_backend():
    """Async tests run on asyncio, as SQLAlchemy does."""
    return "asyncio"


@pytest.fixture
async def async_engine(async_url):
    """An async engine of an empty database, on each database in turn."""
    engine = create_async_engine(async_url)
    yield engine
    await engine.dispose()


@pytest.fixture
async def any_async_engine(any_database_url):
    """An async engine of an empty database of any kind."""
    engine = create_async_engine(as_async(any_database_url))
    yield engine
    await engine.dispose()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    """Forget what the test before this one asked."""
    exchanges.last.clear()
    yield


LOGGERS = ("httpcore", "httpx", "zeroeventhub")

_engines: WeakSet[Engine] = WeakSet()
event.listen(Engine, "engine_connect", lambda connection: _engines.add(connection.engine))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    """Dispose of the engines that a test has made itself, and set the levels of loggers back.

    Python warns of what is left open. Engines of asyncio are closed where their event loop is.
    """
    before, levels = {*_engines}, {name: logging.getLogger(name).level for name in LOGGERS}
    yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    for engine in {*_engines} - before:
        if not engine.dialect.is_async:
            engine.dispose()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    """Show the last statements and requests of a test that has failed."""
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        report.sections.append(("Last statements and requests", "\n".join(exchanges.last)))


def pytest_terminal_summary(terminalreporter):
    """Say for each room how its tests ended, and how many seconds they took."""
    rooms, seconds = defaultdict(Counter), Counter()
    for outcome, reports in terminalreporter.stats.items():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                room = str(Path(report.nodeid.split("::")[0]).parent)
                seconds[room] += report.duration
                if outcome:
                    rooms[room][outcome] += 1
    terminalreporter.section("rooms")
    for room, outcomes in sorted(rooms.items()):
        found = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
        terminalreporter.line(f"{room.removeprefix('tests/'):<32} {seconds[room]:6.1f} s  {found}")
