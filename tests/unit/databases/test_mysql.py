"""Which errors of MariaDB and MySQL pass by themselves."""

import pymysql

from zeroeventhub.databases.error_codes import is_transient


def test_server_that_has_become_a_replica_is_transient():
    """MariaDB has one number for all options that forbid a statement; being read-only passes."""
    said = "The MariaDB server is running with the {} option so it cannot execute this statement"
    error = pymysql.err.OperationalError
    assert is_transient(error(1290, said.format("--read-only")))
    assert not is_transient(error(1290, said.format("--secure-file-priv")))


PASSING = (
    "1020 1040 1047 1053 1158 1159 1160 1161 1203 1205 1213 1412 1613 1614 1792 1836 1927 2002 "
    "2003 2006 2013 2055 3572 4031"
)
STAYING = "1044 1045 1048 1049 1062 1064 1114 1142 1146 1264 1290 1317 1366 1406 1452 2059"


def test_code_of_an_error_tells_whether_it_passes():
    """A code that passes is transient, and any other one stays."""
    codes = f"{PASSING} {STAYING}".split()
    found = [code for code in codes if is_transient(pymysql.err.OperationalError(int(code)))]
    assert " ".join(found) == PASSING
