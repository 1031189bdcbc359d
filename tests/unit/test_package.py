"""The package: its public names, its command line, what needs an extra, and where it is tested."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import zeroeventhub

OPTIONAL = ["click", "greenlet", "psycopg", "pyarrow", "pyspark", "rich", "sqlalchemy"]
OPTIONAL += ["starlette", "uvicorn"]
LIBRARY = Path(zeroeventhub.__file__).parent
TESTS = Path(__file__).parent.parent
MODULE = "import runpy; runpy.run_module('zeroeventhub', run_name='__main__', alter_sys=True)"


def python(code, *arguments, without=()):
    """Run code in a Python of its own, in which some packages are not installed."""
    hide = f"import sys; sys.modules.update(dict.fromkeys({list(without)!r}))\n"
    command = [sys.executable, "-W", "error", "-c", hide + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def test_client_needs_no_extra():
    """A client and a page's decoder work where no optional extra is installed."""
    code = """
import httpx
from zeroeventhub import Client, Event, Feed, FeedInfo, Page, errors
from zeroeventhub.wire.documents import encode_info
from zeroeventhub.wire.ndjson import encode_page
def answer(request):
    page = request.url.path.endswith("/events")
    return httpx.Response(200, content=encode_page(Page([Event.of("a")], "1-1")) if page
                          else encode_info(FeedInfo.of(1)))
with httpx.Client(transport=httpx.MockTransport(answer)) as http:
    print(Client("http://localhost/feed", http).fetch(0, "_first").events[0].data)
"""
    result = python(code, without=OPTIONAL)
    assert (result.stdout, result.stderr) == ("a\n", "")


def test_public_names_can_be_got():
    """Every public name is the one of its module, by attribute and by `import *`."""
    space = {}
    exec("from zeroeventhub import *", space)
    for name in zeroeventhub.__all__:
        value = getattr(zeroeventhub, name)
        assert getattr(value, "__name__", name).rpartition(".")[2] == name
        assert space[name] is value


def test_benchmarks_find_what_they_need_of_the_tests():
    """Each name that a benchmark imports from the tests' harness is there."""
    for file in (TESTS.parent / "benchmarks").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("harness"):
                found = importlib.import_module(node.module)
                assert [one.name for one in node.names if not hasattr(found, one.name)] == [], file


NEEDED = [
    ("zeroeventhub", "TableFeed", "sqlalchemy", "sql"),
    ("zeroeventhub", "TableFeed", "greenlet", "sql"),
    ("zeroeventhub", "CursorStore", "sqlalchemy", "sql"),
    ("zeroeventhub", "CursorStore", "greenlet", "sql"),
    ("zeroeventhub", "lag", "sqlalchemy", "sql"),
    ("zeroeventhub", "read_arrow", "pyarrow", "arrow"),
    ("zeroeventhub", "feed_routes", "starlette", "server"),
    ("zeroeventhub.spark", "FeedSource", "pyspark", "spark"),
    ("zeroeventhub.spark", "register", "pyspark", "spark"),
    ("zeroeventhub.testing", "feed_of", "starlette", "testing"),
    ("zeroeventhub.testing", "check_handler", "sqlalchemy", "testing"),
    ("zeroeventhub.telemetry", "OpenTelemetry", "opentelemetry", "opentelemetry"),
    ("zeroeventhub.telemetry", "Prometheus", "prometheus_client", "prometheus"),
    ("zeroeventhub.telemetry", "lag_collector", "prometheus_client", "prometheus"),
    ("zeroeventhub.relay.kafka", "KafkaTarget", "sqlalchemy", "sql"),
    ("zeroeventhub.relay.kafka", "KafkaTarget", "confluent_kafka", "kafka"),
    ("zeroeventhub.relay.webhooks", "WebhookTarget", "standardwebhooks", "webhooks"),
    ("zeroeventhub.export", "export", "pyarrow", "arrow"),
    ("zeroeventhub.dlt", "feed_resource", "dlt", "dlt"),
]


def test_missing_package_is_named_with_its_extra():
    """What needs a package that is not installed says which extra to install."""
    code = f"""
from importlib import import_module
from zeroeventhub.errors import ConfigurationError, MissingExtra
for module, member, package, extra in {NEEDED!r}:
    sys.modules[package] = None
    try:
        getattr(import_module(module), member)
    except MissingExtra as error:
        assert isinstance(error, ConfigurationError) and isinstance(error, ImportError)
        assert f"needs the package {{package}}: pip install " in str(error), (member, error)
        assert f"extra [{{extra}}]" in str(error), (member, error)
        print(member)
    del sys.modules[package]
"""
    result = python(code)
    assert result.stderr == ""
    assert result.stdout.split() == [member for _, member, _, _ in NEEDED]


@pytest.mark.slow
def test_command_line_runs_as_a_module():
    """`python -m zeroeventhub` is the command line; it says in a sentence what is not installed."""
    result = python(MODULE, "--help")
    assert (result.returncode, result.stderr, "Usage:" in result.stdout) == (0, "", True)
    result = python(MODULE, "--help", without=["click"])
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(
        "Error: The command line needs the package click: pip install click (zeroeventhub's extra"
    )
    assert result.stderr.count("\n") == 1


def test_spark_finds_the_source_in_a_module_of_the_package():
    """The module that Spark looks for has the source as its own."""
    from pyspark_zeroeventhub import DefaultSource
    from zeroeventhub.spark import FeedSource

    assert DefaultSource is FeedSource
    assert FeedSource.name() == "zeroeventhub"


def is_tested(file):
    """Tell whether a file of tests has the name of a file of the library."""
    room, name = file.parent.relative_to(LIBRARY), file.stem
    database, _, strategy = name.partition("_")
    if room == Path("conformance/checks"):
        room, name = room.parent, room.name
    elif room == Path("publisher/ordering") and database in {"mysql", "postgresql"}:
        name = strategy
    elif name == "postgresql_capture":
        room, name = Path("event_log"), strategy
    test = f"test_{name}.py"
    places = [TESTS / "unit" / room, TESTS / "integration" / room, TESTS / "acceptance"]
    return any((place / test).is_file() for place in places)


def test_file_has_its_tests_in_a_file_of_its_name():
    """Who looks for the tests of a file finds them by its room and its name."""
    files = [file for file in LIBRARY.rglob("*.py") if not file.name.startswith("__")]
    assert files
    assert [str(file) for file in sorted(files) if not is_tested(file)] == []
