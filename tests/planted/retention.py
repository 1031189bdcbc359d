"""Mistakes in what a feed keeps: its mark, its archive, its consumers' progress and its log."""

from harness.planted import Planted

_RETENTION = "tests/integration/publisher/test_retention.py"
_PROGRESS = ("tests/integration/publisher/test_progress.py", "-k", "sqlite")
_DELETION = ("tests/integration/publisher/test_deletion.py", "-k", "sqlite")
_COMPACTION = ("tests/integration/publisher/test_compaction.py", "-k", "sqlite")
_SEALING = ("tests/integration/publisher/test_sealing.py", "-k", "history")
_ARCHIVED = ("tests/integration/publisher/test_archive_reader.py", "-k", "boundary")
_ARCHIVE = ("tests/integration/archive/test_archive.py", "-k", "not s3")
_CHANGED = ("tests/integration/archive/test_group.py", "-k", "byte_that_was_changed")
_MANIFEST = "tests/integration/archive/test_manifest.py"
_ERASING = ("tests/integration/archive/test_segment_writer.py",)
_LOG = ("tests/integration/event_log/test_log.py", "-k", "sqlite")
_LOG_TABLE = ("tests/integration/event_log/test_log_table.py", "-k", "sqlite")

PLANTED = (
    Planted(
        "a reader registers a bounded number of consumers",
        "publisher/progress.py",
        "            self._make_room(connection, consumer, principal)\n",
        "",
        _PROGRESS,
    ),
    Planted(
        "readers get no word of the archive's store",
        "archive/objects.py",
        'raise Unavailable("The archive does not answer just now.", retry',
        "raise Unavailable(_sentence(error), retry",
        ("tests/integration/archive/test_objects.py", "-k", "get_no_word"),
    ),
    Planted(
        "what was trimmed is looked up after the rows of a page",
        "publisher/reader.py",
        "        here, after = cursor, place.position",
        """        early = self._history.mark(connection)
        self._history.mark = lambda _: early
        here, after = cursor, place.position""",
        (_RETENTION, "-k", "between_any_two"),
    ),
    Planted(
        "what is trimmed and the mark of it are of one moment",
        "publisher/trimming.py",
        """            events = delete_events""",
        """            connection.commit()
            events = delete_events""",
        (_DELETION[0], "-k", "refer_to_stay"),
    ),
    Planted(
        "a cursor at the mark is of the event that was trimmed there",
        "publisher/retention.py",
        "if comparable and not",
        "if False and not",
        (_RETENTION, "-k", "goes_on and sqlite"),
    ),
    Planted(
        "a cursor below the mark that cannot be checked is refused",
        "publisher/retention.py",
        "place.position > last.position and not place.check",
        "place.position > last.position",
        (_RETENTION, "-k", "its_partition and sqlite"),
    ),
    Planted(
        "a plan waits for every consumer that has registered",
        "publisher/trimming.py",
        "lowest = min(lowest, allowed)",
        "lowest = allowed",
        _PROGRESS,
    ),
    Planted(
        "a batch waits for every consumer that has registered since the plan",
        "publisher/progress.py",
        "until = until if allowed is None else min(until, allowed)",
        "until = until if allowed is None else min(until, allowed)\n            break",
        _PROGRESS,
    ),
    Planted(
        "a place is taken between two batches of trimming",
        "publisher/progress.py",
        "        if self._marks is not None:",
        "        if False:",
        _PROGRESS,
    ),
    Planted(
        "a principal moves its own consumers alone",
        "server/routes.py",
        'options["principal"] = principal.name',
        'options["principal"] = ""',
        _PROGRESS,
    ),
    Planted(
        "a cursor at an event that was compacted stays good",
        "publisher/compaction.py",
        "self._marks.thin(connection, int(found[-1].position))",
        "self._marks.thin(connection, int(found[0].position))",
        _COMPACTION,
    ),
    Planted(
        "a file that was replaced stays for its readers",
        "archive/archive.py",
        "tuple(one for one in newest.removed if one.since > before)",
        "()",
        _ARCHIVE,
    ),
    Planted(
        "a file of a sealer that may still live stays",
        "archive/archive.py",
        " not in needed and created < before",
        " not in needed",
        _ARCHIVE,
    ),
    Planted(
        "what is in the cache is compared with what was written",
        "archive/archive.py",
        "if found is not None and not is_whole(found, digest, check):",
        "if found is not None and not found:",
        ("tests/integration/archive/test_cache.py", "-k", "another_program_writes"),
    ),
    Planted(
        "what comes from the store is compared with what was written",
        "archive/archive.py",
        "            if not is_whole(found, digest, check):\n",
        "            if not found:\n",
        _CHANGED,
    ),
    Planted(
        "where positions are is compared with what was written",
        "archive/archive.py",
        "self._part(segment, part, segment.places_digest, None)",
        'self._part(segment, part, "", None)',
        _CHANGED,
    ),
    Planted(
        "a checksum, which any program can forge, is not compared if there is a digest",
        "archive/manifest.py",
        "    if digest:\n",
        "    if digest and check is None:\n",
        (_MANIFEST, "-k", "forged"),
    ),
    Planted(
        "a manifest is read as it was written",
        "archive/manifest.py",
        "if digest and content != before + _digest_field(before):",
        "if digest and not content:",
        (_MANIFEST, "-k", "another_byte"),
    ),
    Planted(
        "the name of a segment leads nowhere else",
        "archive/manifest.py",
        r'msgspec.Meta(pattern=r"^[0-9]{19}-[0-9]{19}-[0-9a-f]{16}\Z")',
        'msgspec.Meta(pattern="")',
        (_MANIFEST, "-k", "refused"),
    ),
    Planted(
        "the last segment is erased from as well",
        "archive/archive.py",
        "for segment in self.look().segments]:",
        "for segment in self.look().segments[:-1]]:",
        _ERASING,
    ),
    Planted(
        "a row group is read up to its last event",
        "publisher/archive_reader.py",
        "if entry.last > after and entry.first <= until:",
        "if entry.last > after and entry.first < until:",
        _ARCHIVED,
    ),
    Planted(
        "a table is sealed after its own history alone",
        "publisher/sealing.py",
        "            self._reader.vouch_in_table(connection, kept.last)\n",
        "            pass\n",
        _SEALING,
    ),
    Planted(
        "an error of the database is no event that came before",
        "event_log/keyed_table.py",
        "            if not is_duplicate(error):\n                raise\n",
        "",
        _LOG_TABLE,
    ),
    Planted(
        "an id that comes again says the same of its key",
        "event_log/log.py",
        "compared = (columns.type, columns.key, columns.data)",
        "compared = (columns.type, columns.data)",
        _LOG,
    ),
)
