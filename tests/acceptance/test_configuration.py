"""The guide to the file of feeds: its example works, and its commands run as they stand."""

import json
import re
import shlex
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from harness import guides
from harness.command_line import invoke, output_of, started
from harness.guides import DOCUMENTS
from harness.readers import get

from zeroeventhub.cli.configuration import File, read_toml
from zeroeventhub.cli.tokens import read_tokens

GUIDE = (DOCUMENTS / "configuration.md").read_text()
EXAMPLE = DOCUMENTS.parent / "examples" / "shop.toml"
SHOP = """\
PRAGMA journal_mode = WAL;
CREATE TABLE orders (
    id INTEGER PRIMARY KEY AUTOINCREMENT, part INTEGER, kind TEXT, placed DATETIME, data TEXT
);
INSERT INTO orders (part, kind, placed, data) VALUES
    (0, 'placed', '2013-01-01', '{"n": 1}'), (1, 'paid', CURRENT_TIMESTAMP, '{"n": 2}'),
    (0, 'returned', CURRENT_TIMESTAMP, '{"n": 3}');
CREATE TABLE customers (
    id INTEGER PRIMARY KEY AUTOINCREMENT, customer TEXT, name TEXT, city TEXT
);
CREATE TABLE stock (id INTEGER PRIMARY KEY AUTOINCREMENT, article TEXT, amount INTEGER);
INSERT INTO stock (article, amount) VALUES ('ink', 5);
"""


block = partial(guides.block, "configuration.md")


@pytest.fixture
def shop(empty_folder, monkeypatch):
    """A folder with the example, the shop's database, and the tokens of its readers."""
    monkeypatch.setenv("SHOP_DATABASE", "sqlite:///shop.db")
    monkeypatch.setenv("COPY_DATABASE", "sqlite:///copy.db")
    monkeypatch.setenv("SHOP_CURSOR_SECRET", "0123456789abcdef")
    Path("zeroeventhub.toml").write_text(EXAMPLE.read_text())
    made = [output_of("token", "new", name, "--json") for name in ("billing", "audit")]
    tokens = [*map(json.loads, made)]
    Path("tokens.toml").write_text("\n".join(token["line"] for token in tokens))
    Path("billing.token").write_text(tokens[0]["token"])
    with closing(sqlite3.connect("shop.db")) as connection:
        connection.executescript(SHOP)
        for name in ("orders", "customers"):
            connection.executescript(output_of("ddl", name))
        connection.executescript(output_of("ddl", "orders", "--progress"))
    return empty_folder


@pytest.mark.slow
def test_commands_of_the_guide_run(shop):
    """Each command of the guide works with the example, and its feeds are served with rights."""
    commands = re.findall(r"^    zeroeventhub (.*)$", GUIDE, re.MULTILINE)
    for command in commands:
        if not command.startswith(("serve", "sync", "init")):
            output_of(*shlex.split(command))
    bearer = {"Authorization": f"Bearer {Path('billing.token').read_text()}"}
    with started("serve", "--port", 0) as process:
        lines = [process.stdout.readline() for _ in range(6)]
        orders, customers, stock = (line.split()[1] for line in lines[::2])
        assert lines[1].endswith(" -H 'Authorization: Bearer TOKEN'\n"), process.stderr.read()
        assert (customers[-10:], stock[-11:]) == ("/customers", "/shop/stock")
        url = 'url = "http://127.0.0.1:8000/orders"'
        file = Path("zeroeventhub.toml")
        file.write_text(file.read_text().replace(url, f'url = "{orders}"'))
        assert json.loads(output_of("sync", "copy", "--json"))["landed"] == 2
        assert '"subject":"ink"' in get(stock, headers=bearer).text
        assert get(stock).status_code == 401


def test_command_of_the_guide_that_begins_a_file_runs(shop):
    """The file is begun with the table that the guide names."""
    Path("zeroeventhub.toml").unlink()
    (command,) = re.findall(r"^    zeroeventhub (init.*)$", GUIDE, re.MULTILINE)
    assert "[feeds.orders]" in output_of(*shlex.split(command))


def test_pieces_of_the_guide_are_those_of_the_example(shop):
    """What the guide shows of the file stands in the example, and its token file is one."""
    assert block("feed") in EXAMPLE.read_text()
    assert block("readers") in EXAMPLE.read_text()
    assert block("upkeep") in EXAMPLE.read_text()
    Path("tokens.toml").write_text(block("tokens"))
    assert [*read_tokens(Path("tokens.toml")).values()] == ["billing"]


def test_mistake_of_the_guide_is_shown_as_it_is(shop):
    """A key that is misspelled is refused in the words of the guide."""
    file = Path("zeroeventhub.toml")
    file.write_text(block("feed").replace("table", "tabel"))
    command, shown = block("mistake").split("\n", 1)
    assert invoke(*command.split()[2:]).stderr == shown
    file.write_text(block("feed"))
    assert read_toml(file, File)
