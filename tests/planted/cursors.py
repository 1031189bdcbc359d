"""Mistakes in what lies in a consumer's own database, and in what lands in it."""

from harness.planted import Planted

SQLITE = ("-k", "sqlite or not (postgresql or mariadb)")


def mistake(name: str, module: str, old: str, new: str) -> Planted:
    """Describe a mistake that the tests of its module notice on SQLite."""
    room, _, stem = module.removesuffix(".py").rpartition("/")
    return Planted(name, module, old, new, (f"tests/integration/{room}/test_{stem}.py", *SQLITE))


PLANTED = (
    mistake(
        "the fence: a commit that moved no cursor is refused",
        "consumer/store/store.py",
        "        if result.rowcount != 1:",
        "        if result.rowcount > 1:",
    ),
    mistake(
        "compare-and-set: a cursor moves only from where the page was read",
        "consumer/store/store.py",
        "            is_at(columns.cursor, place.cursor),\n",
        "",
    ),
    mistake(
        "the lease epoch: a process that was overtaken commits nothing",
        "consumer/store/store.py",
        "            columns.epoch == place.epoch,\n",
        "",
    ),
    Planted(
        "a new lease's epoch: a process that enters raises it",
        "consumer/store/store.py",
        """{"epoch": columns.epoch + 1})""",
        """{"epoch": columns.epoch})""",
        ("tests/integration/consumer/store/test_leases.py", *SQLITE),
    ),
    Planted(
        "only a process that holds the lease enters",
        "consumer/store/store.py",
        "        if not self.leases.is_held(connection, consumer, partition, owner):",
        "        if self.leases.is_held(connection, consumer, partition, owner) is None:",
        ("tests/integration/consumer/store/test_leases.py", *SQLITE),
    ),
    Planted(
        "a child waits for its parent where a reset comes between its lease and its first page",
        "consumer/store_session.py",
        ", owner, after=step.after)",
        ", owner)",
        ("tests/integration/consumer/test_consumer.py", "-k", "child_waits"),
    ),
    mistake(
        "a partition that goes on has not ended",
        "consumer/store/store.py",
        "True: move.values(ended=False)}",
        "True: move}",
    ),
    mistake(
        "no lease is taken over before it has run out",
        "consumer/store/leases.py",
        " and expires_at > now\n",
        " and expires_at > now + seconds\n",
    ),
    mistake(
        "an expired lease counts no more",
        "consumer/store/leases.py",
        "                columns.expires_at > UnixTime(),\n",
        "",
    ),
    mistake(
        "the database's clock decides",
        "databases/clock.py",
        "    return float(connection.execute(select(UnixTime())).scalar_one())",
        "    return __import__('time').time()",
    ),
    mistake(
        "the inbox: what was applied is not applied again",
        "consumer/store/inbox.py",
        "        return {by_digest[number] for number in unseen}",
        "        return set(ids)",
    ),
    mistake(
        "a lane is fenced like the page",
        "consumer/store/lane_progress.py",
        "        if not found:\n            raise _fenced(consumer, partition)\n",
        "",
    ),
    mistake(
        "a lane that counts from the cursor before begins again",
        "consumer/store/lane_progress.py",
        "left_over = [~is_at(columns.cursor, place.cursor)] if before == 0 else []",
        "left_over = []",
    ),
    mistake(
        "a dead letter waits for the earlier ones of its key",
        "consumer/store/dead_letters.py",
        "            earlier.c.id < columns.id,",
        "            earlier.c.id > columns.id,",
    ),
    mistake(
        "a broken rule of the data does not pass by itself",
        "databases/error_codes.py",
        "            return error.connection_invalidated or is_transient(error.orig)",
        "            return error.connection_invalidated or True",
    ),
)
