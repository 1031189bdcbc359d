"""`zeroeventhub ddl`: what it prints is what the database's own client runs."""

import pytest
from harness.command_line import invoke
from harness.shop import metadata, place

GATED = ("--table", "orders", "--position", "id", "--ordering", "gated")


def test_ddl_prints_a_gate_that_can_be_run(postgresql, postgresql_url):
    """What ddl prints installs the gate, serve asks for it, and --uninstall takes it back."""
    metadata.create_all(postgresql)
    table = ("--database", postgresql_url, *GATED)
    refused = invoke("serve", *table, "--port", 0)
    assert (refused.exit_code, "zeroeventhub ddl" in refused.stderr) == (2, True)
    with postgresql.connect() as connection:
        driver = connection.connection.driver_connection
        driver.execute(invoke("ddl", *table).stdout)
        assert invoke("horizon", *table).stdout == "horizon 0, last number drawn 0\n"
        driver.execute(invoke("ddl", *table, "--uninstall").stdout)
    assert invoke("horizon", *table).exit_code == 2
    assert "needs nothing" in invoke("ddl", *table[:-2]).stdout


@pytest.mark.parametrize("options", [(), ("--partition", "part")])
def test_ddl_prints_what_the_databases_own_client_can_run(mariadb, mariadb_url, options):
    """On MariaDB the statements are set apart by a delimiter that none of them has inside."""
    metadata.create_all(mariadb)
    order = ("--database", mariadb_url, "--table", "orders", "--ordering", "sequenced", *options)
    for _ in range(2):
        run_as_client(mariadb, invoke("ddl", *order).stdout)
    with mariadb.begin() as connection:
        place(connection, 2)
    assert invoke("horizon", *order).stdout == "horizon 2, last number drawn 2\n"
    run_as_client(mariadb, invoke("ddl", *order, "--uninstall").stdout)
    refused = invoke("horizon", *order)
    assert (refused.exit_code, "zeroeventhub ddl" in refused.stderr) == (2, True)


def run_as_client(engine, script):
    """Run a script as the client that comes with the server does."""
    delimiter, statement = ";", ""
    with engine.begin() as connection:
        cursor = connection.connection.cursor()
        for line in script.splitlines():
            if line.startswith("DELIMITER "):
                delimiter = line.removeprefix("DELIMITER ")
                continue
            statement += f"{line}\n"
            if line.endswith(delimiter):
                cursor.execute(statement.rstrip().removesuffix(delimiter))
                statement = ""
    assert statement == ""
