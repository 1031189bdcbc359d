"""The package as it is installed: Spark finds the source by itself."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness.readers import fill, mounted
from harness.shop import orders
from harness.spark import SETTINGS, prepare

import pyspark_zeroeventhub
from zeroeventhub import TableFeed
from zeroeventhub.spark import FeedSource

PROJECT = Path(__file__).parents[2]
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
    left_out = shutil.ignore_patterns(
        ".*", "*.egg-info", "tests", "benchmarks", "examples", "build"
    )
    sources = shutil.copytree(PROJECT, tmp_path / "sources", ignore=left_out)
    installed = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    command = [*pip, "--target", installed, sources]
    subprocess.run(command, check=True, timeout=120, stdout=sys.stderr)
    with mounted(TableFeed(orders, data="data"), fill(sqlite, 5)) as url:
        driver = subprocess.run(
            [sys.executable, "-c", DRIVER, url, json.dumps(SETTINGS)],
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
