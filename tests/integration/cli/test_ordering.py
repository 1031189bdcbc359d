"""`zeroeventhub ddl`, whose output the database's own client runs, and `zeroeventhub horizon`."""

import json

import pytest
from harness.command_line import invoke
from harness.published import install
from harness.shop import metadata, orders, place
from sqlalchemy import text

from zeroeventhub import TableFeed

GATED = ("--table", "orders", "--position", "id", "--ordering", "gated")


def test_ddl_prints_a_gate_that_can_be_run(postgresql, postgresql_url, run_as_client):
    """What ddl prints installs the gate, serve asks for it, and --uninstall takes it back."""
    metadata.create_all(postgresql)
    table = ("--database", postgresql_url, *GATED)
    refused = invoke("serve", *table, "--port", 0)
    assert (refused.exit_code, "zeroeventhub ddl" in refused.stderr) == (2, True)
    run_as_client(postgresql, invoke("ddl", *table).stdout)
    assert invoke("horizon", *table).stdout == "horizon 0, last number drawn 0\n"
    run_as_client(postgresql, invoke("ddl", *table, "--uninstall").stdout)
    assert invoke("horizon", *table).exit_code == 2
    assert "needs nothing" in invoke("ddl", *table[:-2]).stdout


@pytest.mark.parametrize("ordering", ["observed", "gated"])
def test_horizon_names_the_writer_that_holds_it_back(postgresql, postgresql_url, ordering):
    """Horizon shows an open writer, its age, and how long the horizon is held back."""
    metadata.create_all(postgresql)
    table = ("--database", postgresql_url, "--table", "orders", "--ordering", ordering)
    install(TableFeed(orders, ordering=ordering), postgresql)
    with postgresql.connect() as slow:
        place(slow, 1)
        pid = slow.scalar(text("SELECT pg_backend_pid()"))
        shown = invoke("horizon", *table).stdout
        assert f"pid {pid} of " in shown
        assert shown.startswith("horizon not known yet") == (ordering == "observed")
        assert ", held back for at most " in shown
        document = json.loads(invoke("horizon", *table, "--json").stdout)
        assert [blocker["pid"] for blocker in document["blockers"]] == [pid]
        assert document["age"] == document["blockers"][0]["age"] > 0
        slow.commit()
    document = json.loads(invoke("horizon", *table, "--json").stdout)
    assert document == {"settled": 1, "highest": 1, "age": 0, "blockers": [], "unpublished": None}
