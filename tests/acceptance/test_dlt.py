"""A feed as a resource of dlt: the example, on one machine and on another, and killed."""

import random
import subprocess
import sys
from contextlib import suppress

import duckdb
import pytest
from harness.command_line import PATIENCE
from harness.guides import DOCUMENTS
from harness.readers import mounted
from harness.shop import fill, orders, write

from zeroeventhub import TableFeed

EXAMPLE = DOCUMENTS.parent / "examples" / "dlt_pipeline.py"
ADDRESS = "http://127.0.0.1:8000/orders"
KILLS = 20


@pytest.fixture
def url(sqlite, tmp_path, monkeypatch):
    """The URL of a shop with a hundred orders, in an empty folder and without telemetry of dlt."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DLT_DATA_DIR", str(tmp_path / "home"))
    monkeypatch.setenv("RUNTIME__DLTHUB_TELEMETRY", "false")
    feed = TableFeed(orders, data="data", partition="part", partitions=2)
    with mounted(feed, fill(sqlite, 100, partitions=2), arrow=True) as url:
        yield url


@pytest.fixture
def start(url, tmp_path):
    """A function that starts the example."""
    program = tmp_path / EXAMPLE.name
    program.write_text(EXAMPLE.read_text().replace(ADDRESS, url))
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return lambda: subprocess.Popen([sys.executable, program], **options)


def ended(process):
    """Wait for a process that has to end well."""
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output


def numbers():
    """The numbers of the events in the lake."""
    with duckdb.connect("lake.duckdb", read_only=True) as database:
        query = "SELECT CAST(data->>'n' AS INTEGER) FROM raw.orders ORDER BY 1"
        return [number for (number,) in database.sql(query).fetchall()]


@pytest.mark.test_all
def test_example_loads_what_is_new(sqlite, start):
    """The example loads the shop's orders, and when it is run again those that have come since."""
    for count in (100, 110):
        ended(start())
        assert numbers() == [*range(count)]
        write(sqlite, 10, first=count, partitions=2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # dlt's own are not ours
def test_each_run_loads_what_is_new_on_any_machine(sqlite, url, tmp_path):
    """The cursors lie with the rows: also a machine that has never run goes on from them."""
    import dlt

    from zeroeventhub.dlt import feed_resource

    for machine, count in (("one", 100), ("other", 110)):
        pipeline = dlt.pipeline(
            "shop",
            pipelines_dir=str(tmp_path / machine),
            destination=dlt.destinations.duckdb("lake.duckdb"),
            dataset_name="raw",
        )
        pipeline.run(feed_resource(url, name="orders", page_size=10))
        assert numbers() == [*range(count)]
        write(sqlite, 10, first=count, partitions=2)


@pytest.mark.test_all
def test_run_that_is_killed_loads_each_event_once(sqlite, start):
    """Runs are killed at any moment, and the last ones have loaded each event once."""
    dice = random.Random(7)
    for number in range(KILLS):
        process = start()
        with suppress(subprocess.TimeoutExpired):
            process.wait(dice.uniform(1, 5))
        process.kill()
        process.communicate(timeout=PATIENCE)
        write(sqlite, 2, first=100 + 2 * number, partitions=2)
    ended(start())
    ended(start())
    assert numbers() == [*range(100 + 2 * KILLS)]


def test_guide_shows_the_example():
    """The guide shows the example without its docstring."""
    guide = (DOCUMENTS / "data_frames.md").read_text()
    shown = guide.partition("<!-- examples/dlt_pipeline.py -->\n```python\n")[2].partition("```")[0]
    assert EXAMPLE.read_text().partition('"""\n\n')[2] == shown
