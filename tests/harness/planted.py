"""Rules of the library, each with the change that removes it and the tests that must notice."""

from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "zeroeventhub"
FOLDER = Path(__file__).parents[1] / "planted"


@dataclass(frozen=True)
class Planted:
    """Describe a change that removes a rule.

    Attributes:
        name: the rule.
        module: the module that keeps it, below the package.
        old: its text there, which occurs once.
        new: the text without the rule.
        tests: what pytest is to run; one of them has to fail.
    """

    name: str
    module: str
    old: str
    new: str
    tests: tuple[str, ...]

    def plant(self, package: Path) -> None:
        """Change the module in a copy of the package.

        Raises:
            ValueError: the text is not there once, so that the rule has to be found again.
        """
        module = package / self.module
        source = module.read_text()
        if source.count(self.old) != 1:
            raise ValueError(
                f"{self.module} has {self.old!r} {source.count(self.old)} times, not once: say "
                f"anew how the rule is removed ({self.name})."
            )
        changed = source.replace(self.old, self.new)
        compile(changed, self.module, "exec")
        module.write_text(changed)


_CURSORS = "tests/integration/test_cursors.py"
_LEASES = "tests/integration/test_lease_chaos.py"
_KILLS = "tests/integration/test_kill_points.py::test_killed_at_every_point_of_a_page"
_FULL = "tests/integration/test_store_full.py"
_RIGHTS = ("tests/integration/test_rights.py", "-k", "sqlite or not (postgresql or mariadb)")
_AUTHORIZE = ("tests/integration/test_authorize.py",)
_STREAMS = ("tests/integration/test_authorized_streams.py",)
_AHEAD = ("tests/integration/test_read_ahead.py",)
_FORMS = ("tests/integration/test_json_forms.py",)
_QUOTAS = ("tests/integration/test_quota_endpoints.py", "tests/unit/test_quotas.py")
_RETENTION = "tests/integration/test_retention.py"
_PROGRESS = "tests/integration/test_progress.py"

_COMMIT = "yield Do(lambda connection: connection.connection.commit())"
"""Ends the transaction behind everybody's back."""

_OLD = (
    Planted(
        "the fence: a commit that moved no cursor is refused",
        "cursors/store.py",
        "        if result.rowcount != 1:",
        "        if result.rowcount > 1:",
        ("tests/integration/test_consumer.py", "-k", "sqlite"),
    ),
    Planted(
        "compare-and-set: a cursor moves only from where the page was read",
        "cursors/store.py",
        "            is_at(columns.cursor, place.cursor),\n",
        "",
        ("tests/integration/test_consumer.py", _CURSORS, "-k", "sqlite"),
    ),
    Planted(
        "the lease epoch: who was overtaken commits nothing",
        "cursors/store.py",
        "            columns.epoch == place.epoch,\n",
        "",
        (_CURSORS, "-k", "sqlite"),
    ),
    Planted(
        "a new lease's epoch: whoever enters raises it",
        "cursors/store.py",
        """{"epoch": columns.epoch + 1})""",
        """{"epoch": columns.epoch})""",
        (_CURSORS, "-k", "sqlite"),
    ),
    Planted(
        "only who holds the lease enters",
        "cursors/store.py",
        "        if not self.leases.is_held(connection, consumer, partition, owner):",
        "        if self.leases.is_held(connection, consumer, partition, owner) is None:",
        (_CURSORS, "-k", "sqlite"),
    ),
    Planted(
        "nobody takes a lease over before it has run out",
        "cursors/leases.py",
        " and expires_at > now\n",
        " and expires_at > now + seconds\n",
        ("tests/integration/test_leases.py", "-k", "sqlite"),
    ),
    Planted(
        "an expired lease counts no more",
        "cursors/leases.py",
        "                columns.expires_at > UnixTime(),\n",
        "",
        ("tests/integration/test_leases.py", _CURSORS, "-k", "sqlite"),
    ),
    Planted(
        "the database's clock decides",
        "cursors/clock.py",
        "    return float(connection.execute(select(UnixTime())).scalar_one())",
        "    return __import__('time').time()",
        (_LEASES, "-k", "clock and sqlite"),
    ),
    Planted(
        "the tail rule: events behind the last checkpoint are dropped",
        "ndjson/page_decoder.py",
        "        return Page(\n            self._settled,",
        "        return Page(\n            self._settled + self._tail,",
        ("tests/unit/test_ndjson.py",),
    ),
    Planted(
        "a page without a checkpoint is none",
        "ndjson/page_decoder.py",
        "        if self._checkpoint is None or self._checkpoint.cursor is None:",
        "        if self._checkpoint is None and not self._settled + self._tail:",
        ("tests/unit/test_ndjson.py",),
    ),
    Planted(
        "the horizon: a feed is read no further than what is settled",
        "publisher/queries.py",
        "        return horizon.settled if self.stop is None",
        "        return horizon.highest if self.stop is None",
        ("tests/integration/ordering/test_open_writers.py",),
    ),
    Planted(
        "the diverged check: a cursor of another history is refused",
        "publisher/history.py",
        "        return compare_digest(self._seal.check(place.position, event.raw), place.check)",
        "        return bool(place.check)",
        ("tests/integration/test_history.py", "-k", "sqlite"),
    ),
    Planted(
        "a cursor beyond the last event is refused",
        "publisher/reader.py",
        "if any(place is not None and place.position > horizon.highest for place in places):",
        "if any(place is not None and place.position < 0 for place in places):",
        ("tests/integration/test_history.py", "-k", "sqlite"),
    ),
    Planted(
        "the inbox: what was applied is not applied again",
        "cursors/inbox.py",
        "        return {by_digest[number] for number in unseen}",
        "        return set(ids)",
        ("tests/integration/test_inbox.py", "-k", "sqlite"),
    ),
    Planted(
        "a child starts only when its parent has been read to the end",
        "_follow/layout_order.py",
        " and partition.starts_after not in waited_for",
        "",
        ("tests/unit/test_follow.py", "tests/unit/test_layout_follow_model.py"),
    ),
    Planted(
        "an unknown outcome: the cursor is read again before anything is tried again",
        "_follow/partition_follower.py",
        "            except (Fenced, StoreUnavailable) as error:\n"
        "                yield from self.find_out(error)\n",
        "            except StoreUnavailable:\n"
        "                continue\n"
        "            except Fenced as error:\n"
        "                yield from self.find_out(error)\n",
        ("tests/unit/test_partition_follower_commits.py", "tests/unit/test_partition_follower.py"),
    ),
    Planted(
        "events are applied in the transaction that moves the cursor",
        "consumer/applying/decisions.py",
        "        yield Do(fence)\n",
        f"        yield Do(fence)\n        {_COMMIT}\n",
        (f"{_KILLS}[sqlite-run]",),
    ),
    Planted(
        "a dead letter is written in the transaction that moves the cursor",
        "consumer/applying/decisions.py",
        "            if error is None:\n                tally.held += 1\n",
        f"            {_COMMIT}\n            if error is None:\n                tally.held += 1\n",
        (f"{_KILLS}[sqlite-run, set aside]",),
    ),
    Planted(
        "what a failed event wrote is undone",
        "consumer/applying/savepoint.py",
        "            self._savepoint.rollback()",
        "            self._savepoint.commit()",
        ("tests/integration/test_setting_aside.py", "-k", "sqlite"),
    ),
    Planted(
        "later events of a key wait behind its dead letter",
        "consumer/applying/decisions.py",
        "                    held_keys.add(key)",
        "                    held_keys.discard(key)",
        (_FULL, "-k", "later_events"),
    ),
    Planted(
        "later pages wait behind a dead letter too",
        "consumer/applying/decisions.py",
        "            held_keys |= yield Do(",
        "            yield Do(",
        (f"{_KILLS}[sqlite-run, held back]",),
    ),
    Planted(
        "a lane is fenced like the page",
        "cursors/lanes.py",
        "        if not found:\n            raise _fenced(consumer, partition)\n",
        "",
        ("tests/integration/test_lanes.py", "-k", "sqlite"),
    ),
    Planted(
        "a lane goes on where it was",
        "consumer/applying/rounds.py",
        "            done={} if progress is None else progress.done,",
        "            done={},",
        ("tests/integration/test_key_lanes.py", "-k", "sqlite"),
    ),
    Planted(
        "a hidden partition is not there",
        "server/view.py",
        "for partition in info.partitions if may_read(partition.id)",
        "for partition in info.partitions",
        _RIGHTS,
    ),
    Planted(
        "a reader's types are in the query",
        "server/principal.py",
        "        return own if types is None else own.joined(types)",
        "        return own if types is None else types",
        _RIGHTS,
    ),
    Planted(
        "a feed without types shows nothing to a reader of some",
        "server/view.py",
        "            if EVENT_TYPES not in extensions:",
        "            if not extensions:",
        _RIGHTS,
    ),
    Planted(
        "what tells of all types is not for a reader of some",
        "server/view.py",
        "            extensions -= _TELLING\n",
        "",
        _RIGHTS,
    ),
    Planted(
        "an application denies by default",
        "server/authorize.py",
        "authorize: Authorize = deny) -> None",
        "authorize: Authorize = everybody) -> None",
        _AUTHORIZE,
    ),
    Planted(
        "only a Principal lets in",
        "server/access.py",
        "        if not isinstance(found, Principal):",
        "        if found is None:",
        _AUTHORIZE,
    ),
    Planted(
        "answers of a feed that is not for everybody vary",
        "server/access.py",
        """            MutableHeaders(raw=response.raw_headers).add_vary_header("Authorization")""",
        "            pass",
        _AUTHORIZE,
    ),
    Planted(
        "tokens are compared in constant time",
        "server/tokens.py",
        "            if compare_digest(known, digest):",
        "            if known == digest:",
        ("tests/unit/test_token_comparison.py",),
    ),
    Planted(
        "a stream ends with the rights of its reader",
        "server/server_sent_events.py",
        "        return principal != self._principal",
        "        return False",
        _STREAMS,
    ),
    Planted(
        "a reader has a rate",
        "server/quotas.py",
        "        if early > interval * 1e-6:",
        "        if early > interval * 1e6:",
        _QUOTAS,
    ),
    Planted(
        "a reader's waiters are counted",
        "server/quotas.py",
        "        self._add(-1)",
        "        pass",
        _QUOTAS,
    ),
    Planted(
        "what is kept is of the history that there is",
        "server/read_ahead.py",
        "                self._pages.clear()\n                return False",
        "                return True",
        _AHEAD,
    ),
    Planted(
        "a reader of some types gets no page that others were given",
        "server/view.py",
        "        if self._principal.is_restricted_to_types or cursor == LAST:",
        "        if cursor == LAST:",
        _AHEAD,
    ),
    Planted(
        "a page that may be another is not kept",
        "server/read_ahead.py",
        " for question, page in found if page.tag is not None]",
        " for question, page in found]",
        _AHEAD,
    ),
    Planted(
        "a page is kept for its time",
        "server/kept_pages.py",
        "        if until < monotonic():",
        "        if until < 0:",
        _AHEAD,
    ),
    Planted(
        "what is read ahead leaves connections to those who wait",
        "server/source.py",
        "        return self._line.taken * 2 < self._connections and",
        "        return",
        _AHEAD,
    ),
    Planted(
        "text that is not JSON is not passed on",
        "publisher/rows.py",
        "        _check(found.events, last, positions)",
        "        pass",
        _FORMS,
    ),
    Planted(
        "half a pair of surrogates is not passed on",
        "publisher/rows.py",
        "_SURROGATE.search(raw):",
        "not raw:",
        _FORMS,
    ),
    Planted(
        "a commit through the feed's own engine is heard of",
        "server/news.py",
        "            hurry()\n",
        "            pass\n",
        ("tests/unit/test_news.py",),
    ),
    Planted(
        "a secret hides the event at which a cursor stands",
        "publisher/cursor.py",
        ", salt=salt).hexdigest()",
        ").hexdigest()",
        ("tests/unit/test_cursor.py",),
    ),
    Planted(
        "what was trimmed is looked up behind the rows of a page",
        "publisher/reader.py",
        """        self._refuse_beyond(horizon, place, wanted.stop)
        pages =""",
        """        self._refuse_beyond(horizon, place, wanted.stop)
        early = self._history.mark(connection)
        self._history.mark = lambda _: early
        pages =""",
        (_RETENTION, "-k", "between_any_two"),
    ),
    Planted(
        "what is trimmed and the mark that tells of it are of one moment",
        "publisher/trimming/batches.py",
        """        delete = delete_events""",
        """        connection.rollback()
        delete = delete_events""",
        ("tests/integration/test_trim_kills.py", "-k", "single"),
    ),
    Planted(
        "a cursor at the mark is of the event that was trimmed there",
        "publisher/retention/mark.py",
        "if comparable and not",
        "if False and not",
        (_RETENTION, "-k", "goes_on and sqlite"),
    ),
    Planted(
        "a cursor below the mark that cannot be checked is refused",
        "publisher/retention/mark.py",
        "place.position > last.position and not place.check",
        "place.position > last.position",
        (_RETENTION, "-k", "its_partition and sqlite"),
    ),
    Planted(
        "trimming waits for who has registered",
        "publisher/trimming/trimmer.py",
        "lowest = min(lowest, allowed)",
        "pass",
        (_PROGRESS, "-k", "waits_for_who and sqlite"),
    ),
    Planted(
        "a place is taken between two batches of trimming",
        "publisher/progress/registry.py",
        "        if self._marks is not None:",
        "        if False:",
        (_PROGRESS, "-k", "carried_out and sqlite"),
    ),
    Planted(
        "nobody moves the consumer of another",
        "server/endpoint.py",
        "principal=principal.name,",
        'principal="",',
        (_PROGRESS, "-k", "one_principal and sqlite"),
    ),
)


def planted() -> tuple[Planted, ...]:
    """Return the mistakes of all rooms."""
    found = list(_OLD)
    for file in sorted(FOLDER.glob("*.py")):
        spec = spec_from_file_location(f"planted_{file.stem}", file)
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        found += module.PLANTED
    return tuple(found)


PLANTED = planted()
