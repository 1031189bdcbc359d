"""The file of feeds is checked strictly, and its schema is published for editors."""

import time
from pathlib import Path

import jsonschema
import msgspec
import pytest

from zeroeventhub.cli.configuration import File, read_toml
from zeroeventhub.errors import ConfigurationError

PUBLISHED = Path(__file__).parents[3] / "spec" / "configuration.schema.json"

GOOD = """\
[serve]
port = 8000

[feeds.orders]
database = "env:SHOP"
table = "orders"
columns = [
    "id",
    "data",
]
attributes = { subject = "customer" }
readers.billing.types = ["paid"]
trim = { older_than = "30d", every = "1h" }

[consumers."copy"]
url = "https://shop.example/orders"
into = "env:COPY"
table = "orders"
"""


def read(folder, text):
    """Read a text as the file."""
    file = folder / "zeroeventhub.toml"
    file.write_text(text)
    return read_toml(file, File)


def test_published_schema_is_that_of_the_options():
    """The schema for editors is what the command line prints, and accepts a good file."""
    schema = msgspec.json.decode(PUBLISHED.read_bytes())
    assert schema == msgspec.json.schema(File), (
        f"run: python -m zeroeventhub schema configuration > {PUBLISHED.relative_to(Path.cwd())}"
    )
    assert schema["$defs"]["Feed"]["properties"]["data"]["description"]
    jsonschema.Draft202012Validator.check_schema(schema)


def test_good_file_is_read(tmp_path):
    """A file is what TOML says, and the published schema accepts it as well."""
    document = read(tmp_path, GOOD)
    assert document["feeds"]["orders"]["columns"] == ["id", "data"]
    jsonschema.validate(document, msgspec.json.decode(PUBLISHED.read_bytes()))


def test_text_that_is_not_toml_is_named_with_its_line(tmp_path):
    """An error of the syntax names the file and the line."""
    with pytest.raises(ConfigurationError, match=r"zeroeventhub\.toml is not TOML: .* line 17"):
        read(tmp_path, GOOD.replace("env:COPY", "env:COPY\n"))


def test_first_of_several_mistakes_is_named(tmp_path):
    """The feed that is named is the one with the mistake, though more mistakes follow it."""
    feed = 'database = "x"\ntable = "y"\n'
    text = f"[feeds.good]\n{feed}[feeds.bad]\n{feed}data = 5\n[consumers.worse]\nurl = 5\n"
    with pytest.raises(ConfigurationError, match=r"line 7, feeds\.bad\.data: Expected `str`"):
        read(tmp_path, text)


def test_mistake_among_many_feeds_is_named_at_once(tmp_path):
    """The line of a key is found soon in a file of thousands of lines."""
    feed = '[feeds.shop{}]\ndatabase = "env:SHOP"\ntable = "orders"\ncolumns = [\n"id",\n]\n'
    text = "".join(map(feed.format, range(500))) + "tabel = 'x'\n"
    began = time.monotonic()
    with pytest.raises(ConfigurationError, match=r"line 3001, feeds\.shop499\.tabel: There is no"):
        read(tmp_path, text)
    assert time.monotonic() - began < 8


def test_error_shows_no_value(tmp_path):
    """A secret at the wrong place is not repeated."""
    for text in ('table = ["canary"]', "ordering = true\ncursor_secret = ['canary']"):
        with pytest.raises(ConfigurationError) as raised:
            read(tmp_path, f"[feeds.orders]\n{text}")
        assert "canary" not in str(raised.value)
