"""The package as it is installed: Spark finds the source by itself."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness.shop import metadata, orders, place
from harness.spark import SETTINGS, prepare
from harness.web import serving
from starlette.applications import Starlette

import pyspark_zeroeventhub
from zeroeventhub import TableFeed, feed_routes
from zeroeventhub.spark import FeedSource

PROJECT = Path(__file__).parents[2]
PACKAGE = ["zeroeventhub", "pyspark_zeroeventhub.py", "pyproject.toml", "README.md", "LICENSE"]
DRIVER = """
import json, sys
from pyspark.sql import SparkSession
import zeroeventhub

url, settings = sys.argv[1], json.loads(sys.argv[2])
builder = SparkSession.builder.master("local[2]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
rows = spark.read.format("zeroeventhub").load(url).collect()
print(json.dumps([zeroeventhub.__file__, sorted(json.loads(row.data)["n"] for row in rows)]))
spark.stop()
"""


def test_spark_finds_the_source_in_a_module_of_the_package():
    """The module that Spark looks for has the source as its own."""
    assert pyspark_zeroeventhub.DefaultSource is FeedSource
    assert FeedSource.name() == "zeroeventhub"


@pytest.mark.test_all
@pytest.mark.timeout(300)
def test_installed_source_is_found_without_registration(sqlite, tmp_path):
    """What pip installs is a format of Spark's, and nothing has to be called for it."""
    prepare()
    sources, installed = tmp_path / "sources", tmp_path / "installed"
    sources.mkdir()
    for name in PACKAGE:
        copy = shutil.copytree if (PROJECT / name).is_dir() else shutil.copy
        copy(PROJECT / name, sources / name)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*command, "--no-deps", "--target", installed, sources],
        check=True,
        timeout=120,
        stdout=sys.stderr,
    )
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        place(connection, 5)
    with serving(
        Starlette(routes=feed_routes("/orders", TableFeed(orders, data="data"), sqlite))
    ) as base:
        driver = subprocess.run(
            [sys.executable, "-c", DRIVER, f"{base}/orders", json.dumps(SETTINGS)],
            env=os.environ | {"PYTHONPATH": str(installed)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
    assert driver.returncode == 0, driver.stderr
    place_of_package, found = json.loads(driver.stdout.splitlines()[-1])
    assert Path(place_of_package).is_relative_to(installed)
    assert found == list(range(5))
