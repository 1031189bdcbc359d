"""Feeds and consumers are described once, in a file that all commands read."""

import json

import pytest
from harness.command_line import invoke, output_of, run
from harness.shop import orders
from harness.statements import count_of
from harness.trimmed import ten_days

FILE = """\
[feeds.orders]
database = "env:SHOP_DATABASE"
table = "orders"
data = "data"
partition = "part"
partitions = 2
time = "placed"
cloudevents = true
attributes = { subject = "customer" }
archive = "archive"

[feeds.orders.trim]
older_than = "4d"

[feeds.orders.seal]
segment_events = 3

[feeds.other]
database = "env:OTHER_DATABASE"
table = "other"
"""


@pytest.fixture
def described(sqlite, sqlite_url, empty_folder, monkeypatch):
    """The engine of a shop of ten days, whose feed the file in the working directory describes."""
    ten_days(sqlite)
    monkeypatch.setenv("SHOP_DATABASE", sqlite_url)
    (empty_folder / "zeroeventhub.toml").write_text(FILE)
    with sqlite.begin() as connection:  # with the table that a feed needs that is trimmed
        connection.connection.executescript(output_of("ddl", "orders"))
    return sqlite


def test_commands_take_the_name_of_a_feed(described):
    """Each command has the options of the file, those of its own table of it as well."""
    assert output_of("horizon", "orders").startswith("horizon 10")
    assert "error" not in output_of("check", "orders")
    assert json.loads(output_of("seal", "orders", "--json"))["segments"] == 4
    assert output_of("trim", "orders", "--dry-run").startswith("7 events would go")
    assert output_of("trim", "orders", "--yes").endswith("7 events are gone.\n")
    assert count_of(described, orders) == 3
    assert "consumer" in invoke("progress", "list", "orders").stderr


def test_options_go_before_the_file(described, tmp_path):
    """An option that is given replaces the key of the file, which may be anywhere."""
    (tmp_path / "zeroeventhub.toml").rename(tmp_path / "shop.toml")
    at = ("--config", "shop.toml")
    assert (
        json.loads(output_of("seal", *at, "orders", "--segment-events", 5, "--json"))["segments"]
        == 2
    )
    assert invoke("check", "orders", *at, "--table", "nothing").exit_code == 2
    assert "There is no file zeroeventhub.toml" in invoke("check", "orders").stderr


@pytest.mark.parametrize("arguments", [["serve", "--help"], ["trim", "-h", "it"]])
def test_help_needs_no_file(tmp_path, arguments):
    """A command that looks into the file shows its help where there is none."""
    # In a process of its own: click remembers the names of help of the first context.
    shown = run(*arguments, cwd=tmp_path)
    assert (shown.returncode, shown.stdout.startswith("Usage: ")) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", "order"], "zeroeventhub.toml has no 'order' among its feeds: orders, other."),
        (["check", "postgresql://u:canary@host/x"], "Name one of the feeds of zeroeventhub.toml."),
        (["check", "other"], "The environment variable 'OTHER_DATABASE' is not set."),
        (["check", "orders", "--columns", "id"], "not both"),
        (["check"], "give --database and --table"),
        (["sync", "orders"], "among its consumers: none."),
    ],
)
@pytest.mark.usefixtures("described")
def test_name_that_means_nothing_is_refused(arguments, words):
    """A refusal is a sentence with what there is, and repeats no password."""
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert "canary" not in result.stderr


SHOP = 'database = "env:SHOP_DATABASE"\ntable = "orders"\n'
COPY = '[consumers.copy]\nurl = "http://127.0.0.1:1/"\ninto = "sqlite://"\ntable = "copy"\n'


@pytest.mark.parametrize(
    ("arguments", "text", "place", "words"),
    [
        ("check shop", "[serve]\nport = 80000", "line 5, serve.port", "<= 65535"),
        ("check shop", "[server]", "line 4, server", "no such key, but serve"),
        ("check shop", "tabel = 'x'", "line 4, feeds.shop.tabel", "no such key, but table"),
        ("check shop", "[feeds.b]\ntable = 'b'", "line 4, feeds.b", "required field `database`"),
        ("check shop", "columns = [\n'id',\n5]", "line 4, feeds.shop.columns", "Expected `str`"),
        ("serve", "columns=[\n'id']\nattributes.x=5", "line 6, feeds.shop.attributes.x", "`str`"),
        ("serve", "readers.b.types = 'paid'", "line 4, feeds.shop.readers.b.types", "`array"),
        ("serve", "readers.b.typ = []", "line 4, feeds.shop.readers.b.typ", "no such key"),
        ("serve", "trim.older_than = 'a month'", "line 4, feeds.shop.trim.older_than", "matching"),
        ("sync copy", COPY.replace("copy]", "'a copy']"), "line 4, consumers.a copy", "matching"),
        ("check shop", "key = 'nothing'", "line 4, feeds.shop.key", "no column 'nothing'"),
        ("check shop", "columns = [\n'id', 'nothing']", "line 4, feeds.shop.columns", "no column"),
        (
            "check shop",
            "attributes = {x='id'}",
            "line 4, feeds.shop.attributes",
            "give cloudevents",
        ),
        ("check shop", "data = 'data'\ncolumns = ['id']", "line 4, feeds.shop.data", "not both"),
        ("check shop", "cursor_secret = 'env:NO'", "line 4, feeds.shop.cursor_secret", "not set"),
        ("check shop", "position = 'customer'", "line 4, feeds.shop.position", "whole numbers"),
        ("check shop", "partitions = 2", "line 4, feeds.shop.partitions", "--partitions needs"),
        ("check shop", "erasable = true", "line 4, feeds.shop.erasable", "give --archive"),
        ("serve", "tombstone = 'x'", "line 4, feeds.shop.tombstone", "give --compacted"),
        ("check shop", "keep_tombstones='1d'", "line 4, feeds.shop.keep_tombstones", "--compacted"),
        ("horizon shop", "ordering = 'gated'", "line 4, feeds.shop.ordering", "no ordering"),
        ("seal shop", "", "line 1, feeds.shop", "Give the archive"),
        ("trim shop", "", "line 1, feeds.shop", "Say what to trim"),
        ("serve", "key = 'nothing'", "line 4, feeds.shop.key", "no column 'nothing'"),
        ("serve", "cloudevents=true\nattributes.x='y'", "line 5, feeds.shop.attributes", "no col"),
        ("serve", "path = '/{x}'", "line 4, feeds.shop.path", "--path may not have"),
        ("serve", f"[feeds.b]\n{SHOP}path = 'shop/'", "line 7, feeds.b.path", "Another feed"),
        ("serve", "readers = {}", "line 4, feeds.shop.readers", "give --token-file"),
        ("serve", "[serve]\ntoken_file = 'none'", "line 5, serve.token_file", "not exist"),
        ("serve", "[serve]\nhelp_url = 'none'", "line 5, serve.help_url", "address of a page"),
        ("serve", "[serve]\nhost = '192.0.2.1'", "line 5, serve.host", "Let in only readers"),
        ("sync copy", COPY.replace("sqlite://", "env:NO"), "line 6, consumers.copy.into", "'NO'"),
        ("sync copy", f"{COPY}token_file = 'no'", "line 8, consumers.copy.token_file", "not exist"),
        (
            "sync copy",
            f"{COPY}event_types = ['a']\nskip_event_types = ['b']",
            "line 4, consumers.copy:",
            "not both",
        ),
    ],
)
@pytest.mark.usefixtures("described")
def test_mistake_is_named_with_its_place(tmp_path, arguments, text, place, words):
    """An error names the file, the line and the key, or the line of the feed if it has no key."""
    (tmp_path / "zeroeventhub.toml").write_text(f"[feeds.shop]\n{SHOP}{text}\n")
    result = invoke(*arguments.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"Error: zeroeventhub.toml, {place}")
    assert words in result.stderr


@pytest.mark.parametrize(
    "options",
    [
        *("check shop --table nothing", "trim shop --older-than soon", "check shop --time 'x'"),
        *("check shop --partitions 0", "serve --port x", "serve nothing:feeds"),
    ],
)
@pytest.mark.usefixtures("described")
def test_mistake_of_the_command_line_has_no_key_of_the_file(tmp_path, options):
    """An error about an option that is given names neither the file nor the key it replaces."""
    feed = f"[feeds.shop]\n{SHOP}partition = 'part'\npartitions = 2\ntrim.older_than = '1d'\n"
    (tmp_path / "zeroeventhub.toml").write_text(f"{feed}[serve]\nport = 80\n")
    result = invoke(*options.split())
    assert result.exit_code == 2
    assert "line " not in result.stderr
