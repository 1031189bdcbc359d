"""What MariaDB and MySQL alone do: errors whose number has two meanings."""

import pymysql

from zeroeventhub.databases.error_codes import is_transient


def test_server_that_has_become_a_replica_is_transient():
    """MariaDB has one number for all options that forbid a statement; being read-only passes."""
    text = "The MariaDB server is running with the {} option so it cannot execute this statement"
    error = pymysql.err.OperationalError
    assert is_transient(error(1290, text.format("--read-only")))
    assert not is_transient(error(1290, text.format("--secure-file-priv")))
