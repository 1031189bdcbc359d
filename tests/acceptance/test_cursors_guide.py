"""The guide to a consumer's life: its commands run as they stand."""

import re
import runpy
import sqlite3
import sys

import pytest
from harness import operated
from harness.command_line import invoke
from harness.guides import DOCUMENTS, block, guide, typed
from harness.operated import ADDRESS
from harness.published import install
from harness.readers import mounted
from harness.shop import metadata, orders
from harness.statements import add, execute, scalars
from harness.stores import new_store
from sqlalchemy import create_engine, text

from zeroeventhub import CursorStore, Progress, TableFeed

TEXT = (DOCUMENTS / "cursors.md").read_text()
EXAMPLES = DOCUMENTS.parent / "examples"


def section(title):
    """Return a section of the guide."""
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def pieces(title):
    """Return the commands and the SQL ("compare", "switch") of a section, in order."""
    found = re.finditer(
        r"^    ((?:python|zeroeventhub) .+)$|^```sql\n([^`]*)^```", section(title), re.MULTILINE
    )
    return [(match[1], match[2]) for match in found]


@pytest.fixture
def shop(sqlite, empty_folder):
    """The address of a feed of four orders, in an empty folder where its consumers are."""
    metadata.create_all(sqlite)
    place(sqlite, *range(4))
    source = TableFeed(orders, data="data", time="placed", progress=Progress())
    install(source, sqlite)
    with mounted(source, sqlite) as url:
        code = (EXAMPLES / "shadow.py").read_text()
        (empty_folder / "shadow.py").write_text(code.replace(ADDRESS, url))
        yield url


@pytest.fixture
def billing(shop):
    """The engine of the consumers, of whom billing has read the four orders."""
    carry_out("python shadow.py billing invoices", shop)
    engine = create_engine("sqlite:///billing.db")
    yield engine
    engine.dispose()


def place(engine, *amounts):
    """Place orders of these amounts."""
    add(engine, orders, [{"data": {"customer": f"c{n}", "amount": n}} for n in amounts])


def carry_out(command, url, answer=None):
    """Run a command of the guide at a feed; return what it says."""
    program, *arguments = command.split()
    if program != "python":
        return operated.carry_out(command, {ADDRESS: url}, answer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", arguments)
        runpy.run_path(arguments[0], run_name="__main__")["engine"].dispose()
    return ""


def query(script):
    """Run the statements of the guide in one transaction; return the rows of each."""
    connection = sqlite3.connect("billing.db")
    with connection:
        rows = [connection.execute(one).fetchall() for one in script.split(";") if one.strip()]
    connection.close()
    return rows


@pytest.mark.parametrize("begins_with_a_copy", [False, True])
def test_shadow_takes_over(shop, billing, sqlite, begins_with_a_copy):
    """New code reads along into its own table, is compared, takes over, and applies each order
    once, whether it began at the first event or with a copy.
    """
    if begins_with_a_copy:
        with guide("cursors.md", engine=billing, store=CursorStore(billing), text=text) as piece:
            piece("copy")
        assert query("SELECT count(*) FROM invoices_next") == [[(4,)]]
    place(sqlite, 4)
    for command, script in pieces("Try new code beside the present one"):
        if command:
            said = carry_out(command, shop)
            assert " lag " not in command or said.split()[3:5] == ["0", "0"]
        elif "EXCEPT" in script:
            assert query(script) == [[], []]
            query("DELETE FROM invoices_next WHERE amount = 2")
            assert query(script) == [[], [("c2", 2)]]
            query("INSERT INTO invoices_next VALUES ('c2', 2)")
        else:
            query(script)
            place(sqlite, 5)
    assert sorted(scalars(billing, "SELECT amount FROM invoices")) == [0, 1, 2, 3, 4, 5]
    assert scalars(billing, "SELECT DISTINCT consumer FROM zeroeventhub_cursors") == ["billing"]


def test_comparison_shows_who_is_elsewhere(shop, billing, sqlite):
    """Where one of the two has read further, the guide's first query shows the partition."""
    carry_out("python shadow.py billing-next invoices_next", shop)
    place(sqlite, 4)
    carry_out("python shadow.py billing invoices", shop)
    scripts = (sql or "" for _, sql in pieces("Try new code beside the present one"))
    (script,) = (sql for sql in scripts if "EXCEPT" in sql)
    assert query(script) == [[(0,)], [("c4", 4)]]


def test_statements_are_of_every_database(engine):
    """A copy is compared and takes over on each database, and who needs a parent is found there."""
    store = new_store(engine)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE invoices (customer VARCHAR(9), amount INTEGER)"))
        connection.execute(text("INSERT INTO invoices VALUES ('c1', 1), ('c2', 2)"))
        for partition in (0, 1):
            store.load(connection, "billing", partition)
    with guide("cursors.md", engine=engine, store=store, text=text) as piece:
        piece("copy")
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM invoices_next WHERE amount = 2"))
        store.set(connection, "billing-next", 1, "9")
    compared = [scalars(engine, one) for one in _statements("compare")]
    assert compared == [[1], ["c2"]]
    for statement in _statements("switch"):
        execute(engine, statement)
    amounts = [
        scalars(engine, f"SELECT amount FROM {table}") for table in ("invoices_old", "invoices")
    ]
    assert amounts == [[1, 2], [1]]
    (needed,) = _statements("consumers", "partitions.md")
    assert sorted(scalars(engine, needed)) == ["billing", "billing-next"]


def _statements(mark, document="cursors.md"):
    """Return the statements of a block of SQL."""
    return [one for one in block(document, mark).split(";") if one.strip()]


def test_question_is_the_one_of_the_guide(shop, billing):
    """The command says what the guide shows, but for cursors, and asks."""
    (_, *words), shown = typed("cursors.md", "asked")
    asked = invoke(*(word.replace(ADDRESS, shop) for word in words), answer="n\n")
    assert asked.exit_code == 1
    blank = [re.sub(r"\S+ -> ", "… -> ", said) for said in (asked.stderr, shown)]
    assert blank[0].startswith(blank[1].rstrip("\n"))


def test_consumer_is_moved_renamed_and_forgotten(shop, billing):
    """The other commands of the guide work, one after the other."""
    for title in ("Move cursors", "Rename and forget"):
        for command, _ in pieces(title):
            if "--from-spark-checkpoint" not in command:
                said = carry_out(command, shop, "y\n")
                assert said
    assert scalars(billing, "SELECT count(*) FROM zeroeventhub_cursors") == [0]
    assert scalars(billing, "SELECT count(*) FROM invoices") == [0]
