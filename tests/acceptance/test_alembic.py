"""Tables of the package in migrations of Alembic's, which creates some and drops none."""

import re
from itertools import product
from textwrap import indent

import pytest
from alembic import config
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from harness.guides import block, guide
from harness.shop import metadata, orders, place
from sqlalchemy import Column, Integer, MetaData, String, Table

from zeroeventhub import (
    FIRST,
    Capture,
    CursorStore,
    EventLog,
    Progress,
    Retention,
    TableFeed,
    cursor_metadata,
    cursor_tables,
)
from zeroeventhub.alembic import include_object
from zeroeventhub.errors import ConfigurationError


def test_alembic_sees_the_tables_of_the_store_and_of_a_log(any_engine):
    """Alembic compares the exported metadata: tables to add with their indexes, then nothing."""
    log = MetaData()
    EventLog(log, "orders", partitions=8, snapshots=True)
    for known, indexes in ((cursor_metadata, 0), (log, 2)):
        with any_engine.connect() as connection:
            context = MigrationContext.configure(connection)
            kinds = sorted(kind for kind, _ in compare_metadata(context, known))
            assert kinds == ["add_index"] * indexes + ["add_table"] * len(known.tables)
            known.create_all(connection)
            assert compare_metadata(MigrationContext.configure(connection), known) == []
            known.drop_all(connection)
            connection.commit()


def migrating(connection):
    """Be in a migration of Alembic's."""
    return Operations.context(MigrationContext.configure(connection))


@pytest.mark.parametrize(
    ("database", "ordering"),
    [("postgresql", "gated"), *product(("postgresql", "mariadb", "sqlite"), ["sequenced"])],
)
def test_alembic_installs_an_ordering_and_leaves_its_tables_alone(request, database, ordering):
    """A migration installs or uninstalls an ordering in a line; autogenerate drops none of it."""
    engine = request.getfixturevalue(database)
    metadata.create_all(engine)
    source = TableFeed(orders, data="data", ordering=ordering)
    options = {"include_object": include_object}
    with engine.begin() as connection, migrating(connection) as operations:
        source.install(operations.get_bind())
    with engine.begin() as connection:
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []
        place(connection, 1)
    assert source.bind(engine).read(0, FIRST, 1).events[0].data == {"n": 0}
    with engine.begin() as connection, migrating(connection) as operations:
        source.uninstall(operations.get_bind())
    with pytest.raises(ConfigurationError):
        source.bind(engine).info()


def test_alembic_captures_tables_and_leaves_the_log_alone(any_engine):
    """A migration as the guide has it installs the triggers; autogenerate sees nothing to do."""
    tables = MetaData()
    Table("person", tables, Column("id", Integer, primary_key=True), Column("name", String(40)))
    capture = Capture(EventLog(tables, "changes"), "person")
    tables.create_all(any_engine)
    with (
        any_engine.begin() as connection,
        migrating(connection) as operations,
        guide("changes.md", capture=capture, op=operations) as piece,
    ):
        names = piece("migration")
        names["upgrade"]()
        assert [found.level for found in capture.check(connection)] == ["ok"]
    options = {"include_object": include_object}
    with any_engine.begin() as connection:
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, tables) == []
    with any_engine.begin() as connection, migrating(connection) as operations:
        names["op"] = operations
        names["downgrade"]()
        assert [found.level for found in capture.check(connection)] == ["error"]


SIDE = {"ordering": "sequenced", "retention": Retention(), "progress": Progress()}
MODELS = """
from harness.shop import orders
from sqlalchemy import MetaData
from zeroeventhub import cursor_tables
target_metadata = MetaData()
orders.to_metadata(target_metadata)
if {has_store}:
    cursor_tables(target_metadata)
"""


def revision(folder, name):
    """Return the statements of a revision that Alembic generates, up and down."""
    config.main(["revision", "--autogenerate", "-m", name])
    (file,) = (folder / "migrations" / "versions").glob(f"*_{name}.py")
    return re.findall(r"op\.(\w+)\(\s*(?:op\.f\()?'(\w+)'", file.read_text())


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A function that sets a project up as Alembic does, with the lines of the guide."""
    monkeypatch.chdir(tmp_path)
    # It would replace the handlers of this process, and silence its loggers.
    monkeypatch.setattr("logging.config.fileConfig", lambda _: None)

    def set_up(engine, *, has_store):
        config.main(["init", "migrations"])
        settings, script = tmp_path / "alembic.ini", tmp_path / "migrations" / "env.py"
        url = engine.url.render_as_string(hide_password=False).replace("%", "%%")
        lines = re.sub(
            "^sqlalchemy.url = .*$",
            f"sqlalchemy.url = {url}",
            settings.read_text(),
            flags=re.MULTILINE,
        )
        settings.write_text(lines)
        start, configure = block("frameworks.md", "alembic").split("\n\n")
        own = re.compile(
            r"^        context\.configure\(\n +connection=.*?^        \)\n",
            re.DOTALL | re.MULTILINE,
        )
        text, count = own.subn(indent(configure, " " * 8), script.read_text())
        assert count == 1
        models = MODELS.format(has_store=has_store)
        script.write_text(text.replace("target_metadata = None", f"{start}\n{models}"))
        return tmp_path

    return set_up


@pytest.mark.slow
@pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.test_all)]
)
@pytest.mark.parametrize("has_store", [False, True], ids=["beside", "in the metadata"])
def test_autogenerate_drops_no_table_of_the_package(request, project, database, has_store):
    """With the lines of the guide, Alembic makes your tables and never drops the package's."""
    engine = request.getfixturevalue(database)
    folder = project(engine, has_store=has_store)
    mine = MetaData()
    tables = {"orders"} | (
        {table.name for table in cursor_tables(mine).all()} if has_store else set()
    )
    made = revision(folder, "first")
    assert {name for kind, name in made if kind == "create_table"} == tables
    config.main(["upgrade", "head"])
    with engine.begin() as connection:
        if not has_store:
            CursorStore(engine).create_tables(connection)
        TableFeed(orders, data="data", time="placed", **SIDE).install(connection)
    assert revision(folder, "second") == []
