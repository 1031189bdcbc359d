"""Mistakes in the command line and in the conformance kit."""

from harness.planted import Planted

_MISTAKES = ("tests/integration/cli/test_commands.py",)
_CURSORS = ("tests/integration/cli/test_cursors.py",)

PLANTED = (
    Planted(
        "a command that was asked for something impossible ends with exit code 2",
        "cli/commands.py",
        "raise _Failure(str(error), MISUSED) from error\n        except ZeroEventHubError",
        "raise _Failure(str(error), FAILED) from error\n        except ZeroEventHubError",
        _MISTAKES,
    ),
    Planted(
        "a command that failed ends with exit code 1",
        "cli/commands.py",
        "raise _Failure(str(error), FAILED) from error\n        except UnicodeError",
        "raise _Failure(str(error), MISUSED) from error\n        except UnicodeError",
        _MISTAKES,
    ),
    Planted(
        "check --strict fails for warnings",
        "cli/maintenance.py",
        '{"error", "warning"} if strict else {"error"}',
        '{"error"} if strict else {"error", "warning"}',
        ("tests/integration/cli/test_maintenance.py", "-k", "mends_it and sqlite"),
    ),
    Planted(
        "conformance ends with exit code 1 where a check failed",
        "cli/conformance.py",
        "result.outcome is Outcome.FAIL for result",
        "result.outcome is Outcome.NOTE for result",
        ("tests/integration/cli/test_conformance.py",),
    ),
    Planted(
        "sync does not begin in the middle of a feed",
        "cli/consume.py",
        "store.cursors(connection, consumer) and not landing.exists(connection)",
        "store.cursors(connection, consumer) and landing is None",
        ("tests/integration/cli/test_consume.py", "-k", "sqlite or not (postgresql or mariadb)"),
    ),
    Planted(
        "cursors reset empties tables in the transaction that moves the cursors",
        "cli/cursors.py",
        "        deleted = {\n",
        "        connection.commit()\n        deleted = {\n",
        _CURSORS,
    ),
    Planted(
        "an operator is asked before anything is changed",
        "cli/output.py",
        "    if not yes:\n",
        "    if yes:\n",
        _CURSORS,
    ),
    Planted(
        "the demo fails where its sums are not the truth",
        "cli/demo.py",
        '    if not result["equal"]:\n',
        "    if result is None:\n",
        ("tests/acceptance/test_demo.py", "-k", "says_what_is_wrong"),
    ),
)
