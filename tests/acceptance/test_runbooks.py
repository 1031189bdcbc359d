"""The runbooks mend what they are for, by their commands as they stand."""

import re
import shlex
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from harness import guides, operated
from harness.command_line import started
from harness.engines import connected
from harness.shop import fill, metadata, orders, place
from harness.statements import execute
from harness.waiting import until

from zeroeventhub import FIRST, LAST, Client, Event, Failures, Retention, TableFeed
from zeroeventhub.errors import Diverged, Trimmed

block = partial(guides.block, "runbooks.md")


def copy(source, target):
    """Copy a database as a backup does, or restore it, beside programs that have it open."""
    with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
        one.backup(other)


def carry_out(mark, url, *, database=None):
    """Run the commands of a block at a feed; return what each prints."""
    places = {operated.ADDRESS: url, "postgresql://…": database}
    return [operated.carry_out(line, places) for line in block(mark).splitlines()]


@pytest.fixture
def shop(empty_folder):
    """The shop of the runbooks in an empty folder."""
    with operated.shop_in_files() as shop:
        yield shop


def test_lag_is_shown(shop):
    """`lag` prints how many orders are to be read, and `cursors` that no consumer has the lease."""
    shop.place(3, 4)
    lag, held = carry_out("lag", shop.url)
    assert lag.splitlines()[1].split()[:2] == ["0", "2"]
    assert held.startswith("partition 0: 2-3-")
    assert "read by" not in held
    shop.bill()
    assert carry_out("lag", shop.url)[0].splitlines()[1].split()[:2] == ["0", "0"]


def test_leases_of_a_killed_process_are_ended(shop):
    """Where the clock was set back after a process was killed, another one goes on at once."""
    with shop.billing.begin() as connection:
        shop.store.leases.claim(connection, "billing", "!killed", [0], seconds=3600, share=True)
    shop.place(3)
    *_, held = carry_out("lag", shop.url)
    assert "read by !killed, whose lease ends in 3" in held
    execute(shop.billing, *block("leases").splitlines())
    shop.bill()
    assert shop.invoices == [0, 1, 2, 3]


@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
def test_forgotten_writer_is_ended(database, request):
    """The command names the writer, the statement ends it, and the horizon goes on."""
    engine = request.getfixturevalue(database)
    fill(engine, 2)
    address = engine.url.render_as_string(hide_password=False)
    forgotten = engine.connect()
    place(forgotten, 1)
    (said,) = carry_out("horizon", None, database=address)
    (pid,) = set(re.findall(r"pid (\d+)", said))
    execute(engine, block(f"end {database}").replace("4711", pid))
    forgotten.invalidate()
    forgotten.close()

    def passed():
        (said,) = carry_out("horizon", None, database=address)
        return re.fullmatch(r"horizon 3, last number drawn 3\n", said)

    until(passed, "the horizon goes on")


def test_trimmed_consumer_goes_on(shop):
    """A consumer below the retained orders goes on at the first of them."""
    shop.place(3, 4)
    with shop.orders.begin() as connection:
        connection.execute(orders.update().values(placed=datetime.now(UTC) - timedelta(days=9)))
    shop.place(5)
    feed = TableFeed(orders, data="data", time="placed", retention=Retention())
    bound = feed.bind(shop.orders)
    bound.trim(bound.plan_trim(older_than=timedelta(days=1)))
    with pytest.raises(Trimmed):
        shop.bill()
    assert carry_out("where", shop.url)[0].startswith("partition 0: 2-3-")
    carry_out("trimmed", shop.url)
    shop.bill()
    assert shop.invoices == [0, 1, 2, 5]


@pytest.mark.parametrize("way", ["diverged", "rebuild"])
def test_publisher_is_restored(shop, way):
    """After a restore, a consumer that has read lost orders halts until its cursor is moved."""
    copy("shop.db", "backup.db")
    shop.place(3, 4)
    shop.bill()
    copy("backup.db", "shop.db")
    (said,) = carry_out("restored", shop.url)
    assert "error" not in said
    shop.place(5, 6, 7)
    with pytest.raises(Diverged):
        shop.bill()
    if way == "diverged":
        execute(shop.billing, "DELETE FROM invoices")  # the effects of these two hours
    carry_out(way, shop.url)
    shop.bill()
    assert shop.invoices == [0, 1, 2, 5, 6, 7]


def test_publisher_is_restored_from_its_archive(shop, tmp_path):
    """A table is restored from its archive; a consumer that has read a lost order gets an error."""
    places = {"/var/history/orders": str(tmp_path / "archive")}
    feed = ["--database", "sqlite:///shop.db", "--table", "orders", "--data", "data"]
    operated.carry_out(
        shlex.join(["zeroeventhub", "seal", *feed, "--archive", *places.values()]), {}
    )
    shop.place(3)
    lost = Client(shop.url).fetch(0, LAST).cursor
    execute(shop.orders, "DROP TABLE orders", "DROP TABLE zeroeventhub_retention")
    (line,) = block("archive").splitlines()
    words = [places.get(word, word) for word in shlex.split(line)[2:]]
    with started(*words, "--port", 0) as process:
        url = process.stdout.readline().split()[1]
        assert len(Client(url).fetch(0, FIRST).events) == 3
    metadata.create_all(shop.orders)
    said = [operated.carry_out(line, places) for line in block("restore").splitlines()]
    assert said[0].startswith("3 events from position 1 to 3 are in the table")
    assert "error" not in said[1]
    shop.place(4)
    with pytest.raises(Diverged):
        Client(shop.url).fetch(0, lost)
    shop.bill()
    assert shop.invoices == [0, 1, 2, 4]


@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
def test_lost_host_is_given_up(database, request):
    """The limits on waiting for a lost host are options that connections take."""
    text = (guides.DOCUMENTS / "runbooks.md").read_text()
    engine = request.getfixturevalue(database)
    (limits,) = [
        dict(pair.split("=") for pair in options.split("&"))
        for options, title in re.findall(r"`\?([^`]+)`\s+on (PostgreSQL|MariaDB)", text)
        if title.lower() == database
    ]
    url = engine.url.update_query_dict(limits).render_as_string(hide_password=False)
    with connected(url) as limited, limited.connect() as connection:
        driver = connection.connection.driver_connection
        taken = driver.info.get_parameters() if database == "postgresql" else vars(driver)
        assert {name: str(taken.get(name, taken.get(f"_{name}"))) for name in limits} == limits


def test_consumer_is_restored(shop):
    """A consumer whose database was restored bills again what was lost with its cursor."""
    copy("billing.db", "backup.db")
    shop.place(3, 4)
    shop.bill()
    copy("backup.db", "billing.db")
    assert shop.invoices == [0, 1, 2]
    shop.bill()
    assert shop.invoices == [0, 1, 2, 3, 4]
    *_, lag = carry_out("after", shop.url)
    assert lag.splitlines()[1].split()[:2] == ["0", "0"]


def test_dead_letters_are_applied_or_discarded(shop):
    """Orders that a broken handler set aside are shown, and applied once it is mended."""

    def broken(connection, event: Event):
        raise ValueError("the tax of this order is not known")

    shop.place(3, 4)
    shop.bill(broken, failures=Failures(then="set-aside", tries=1))
    listed, shown = carry_out("letters", shop.url)
    assert len([line for line in listed.splitlines() if "ValueError" in line]) == 2
    assert "the tax of this order is not known" in shown
    carry_out("discard", shop.url)
    carry_out("retry", shop.url)
    shop.bill(failures=Failures(then="set-aside"))
    assert shop.invoices == [0, 1, 2, 4]
