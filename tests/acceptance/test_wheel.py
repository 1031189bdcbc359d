"""The wheel works where there is no checkout, with what a package registry has."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from harness import command_line

ROOT = Path(__file__).parents[2]

PUBLISHED_AND_CONSUMED = """
import threading, time
import httpx, uvicorn
from sqlalchemy import JSON, Column, Integer, MetaData, Table, create_engine, insert
from starlette.applications import Starlette
from zeroeventhub import Client, Consumer, CursorStore, TableFeed, feed_routes

engine = create_engine("sqlite:///shop.db")
store, tables = CursorStore(engine), MetaData()
key = Column("id", Integer, primary_key=True)
orders = Table("orders", tables, key, Column("data", JSON), sqlite_autoincrement=True)
app = Starlette(routes=feed_routes("/orders", TableFeed(orders, data="data"), engine))
with engine.begin() as connection:
    tables.create_all(connection)
    store.create_tables(connection)
    connection.execute(insert(orders), [{"data": {"amount": 12}}, {"data": {"amount": 7.5}}])

server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
threading.Thread(target=server.run, daemon=True).start()
while not server.started:
    time.sleep(0.01)
host, port = server.servers[0].sockets[0].getsockname()
with httpx.Client() as http:
    for page in Consumer(Client(f"http://{host}:{port}/orders", http), store, "billing"):
        with engine.begin() as connection:
            page.commit(connection)
        print(sum(event.data["amount"] for event in page.events))
        break
"""

IN_SPARK = """
from zeroeventhub.spark import FeedSource
from pyspark_zeroeventhub import DefaultSource
print(FeedSource.name(), DefaultSource is FeedSource)
"""


def run(python, *arguments):
    """Run Python outside of the checkout, and return what it prints."""
    environment = {**os.environ, "PYTHONPATH": ""}
    printed = command_line.run(*arguments, program=[python], cwd=python.parent, env=environment)
    assert printed.stderr == ""
    return printed.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "packages", ["of the tests", pytest.param("of the registry", marks=pytest.mark.test_all)]
)
def test_wheel_opens_every_door(tmp_path, packages):
    """Beside its dependencies, the wheel publishes, consumes, and is a source of Spark."""
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, ROOT]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert len(list(tmp_path.glob("*.tar.gz"))) == 1
    python, own = tmp_path / "venv" / "bin" / "python", sysconfig.get_path("purelib")
    venv.create(tmp_path / "venv")
    options = ["--disable-pip-version-check", "--python", python, "install", "--quiet"]
    requested = [f"{wheel}[cli]"] if packages == "of the registry" else ["--no-deps", wheel]
    subprocess.run(
        [sys.executable, "-m", "pip", *options, *requested],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": ""},
    )
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    if packages == "of the tests":
        (site / "tests.pth").write_text(own)
    assert run(python, "-c", PUBLISHED_AND_CONSUMED) == "19.5\n"
    assert run(python, "-m", "zeroeventhub", "--version").startswith("zeroeventhub")
    assert (site / "zeroeventhub" / "py.typed").exists()
    for folder in ("assets", "templates"):
        files = (ROOT / "zeroeventhub" / "console" / folder).iterdir()
        packed = (site / "zeroeventhub" / "console" / folder).iterdir()
        assert {file.name for file in packed} == {file.name for file in files}
    # PySpark is the one of the tests' environment: it is large.
    pytest.importorskip("pyspark", reason="PySpark is not installed: pip install --group spark")
    (site / "tests.pth").write_text(own)
    assert run(python, "-c", IN_SPARK) == "zeroeventhub True\n"
