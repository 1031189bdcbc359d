"""Mistakes in reading a feed with Spark, and in telemetry."""

from harness.planted import Planted

_PLAN = ("tests/unit/spark/test_plan.py",)
_RANGES = ("tests/integration/spark/test_range_reader.py", "-k", "not published_peer")
_SEGMENTS = ("tests/integration/spark/test_segment_reader.py",)
_CREDENTIALS = ("tests/integration/spark/test_connection.py", "-k", "token_is_read_again")

PLANTED = (
    Planted(
        "the events of all rounds of a micro-batch are counted",
        "spark/plan.py",
        "before.events + found.events, found.at_head",
        "found.events, found.at_head",
        _PLAN,
    ),
    Planted(
        "a partition waits until the one before it is read to its end",
        "spark/plan.py",
        "parent is not None and not _is_read(parent, ends)",
        "parent is not None and parent not in ends",
        _PLAN,
    ),
    Planted(
        "a range has as many events as were counted since its start",
        "spark/offsets.py",
        "end.counts[partition] - start.counts.get(partition, 0)",
        "end.counts[partition]",
        ("tests/unit/spark/test_source.py",),
    ),
    Planted(
        "a feed that cannot stop is read on behind a batch that is full",
        "spark/source.py",
        "self._is_over = read < (events or SCANNED)",
        "self._is_over = read <= (events or SCANNED)",
        ("tests/unit/spark/test_plan.py", "tests/unit/spark/test_source.py"),
    ),
    Planted(
        "what is there when a query begins is looked up once",
        "spark/source.py",
        "if self._stops_at_head and self._target is None:",
        "if self._stops_at_head:",
        ("tests/unit/spark/test_source.py",),
    ),
    Planted(
        "what is left of a range is read where the partitions have gone, not all of it",
        "spark/range_reader.py",
        "                rest = [current, *rest]",
        "                rest = [one, *rest]",
        _RANGES,
    ),
    Planted(
        "what is read by count has all types, of which the task takes those it wants",
        "spark/range_reader.py",
        "is_filtered = self._filters and one.count is None",
        "is_filtered = self._filters",
        _RANGES,
    ),
    Planted(
        "events of a file behind the end of a range are not read",
        "spark/segment_reader.py",
        "at[0].as_py() > after and at[-1].as_py() <= upto",
        "at[0].as_py() > after",
        _SEGMENTS,
    ),
    Planted(
        "a store of files is not shown what the feed is",
        "spark/connection.py",
        "credentials.open({}, with",
        "credentials.open(self._headers, with",
        _SEGMENTS,
    ),
    Planted(
        "files of other origins are read only where options say so",
        "spark/connection.py",
        "if not (is_own or _is_signed(url) or origin in",
        "if not (is_own or _is_signed(url) or origin or origin in",
        _SEGMENTS,
    ),
    Planted(
        "a range of a file is no longer than was asked for",
        "spark/segment_reader.py",
        "        if len(content) > length:",
        "        if not length:",
        _SEGMENTS,
    ),
    Planted(
        "a token that was replaced is shown instead of the one that was refused",
        "spark/connection.py",
        "self._options.credentials.headers() == self._headers",
        "self._options.credentials.headers().keys() == self._headers.keys()",
        _CREDENTIALS,
    ),
    Planted(
        "a history that is another one ends a read that may lose nothing",
        "spark/plan.py",
        "        except Diverged as error:\n"
        "            if self._fails:\n"
        "                raise _with_advice(partition, error) from None\n",
        "        except Diverged:\n",
        _PLAN,
    ),
    Planted(
        "a batch that is under way is not taken for committed",
        "spark/offsets.py",
        "if last not in committed:",
        "if not committed:",
        ("tests/unit/spark/test_offsets.py",),
    ),
    Planted(
        "a page of a file that was changed is refused",
        "spark/segment_reader.py",
        "page_checksum_verification=True",
        "page_checksum_verification=False",
        (*_SEGMENTS, "-k", "changed_byte"),
    ),
    Planted(
        "a file has a checksum of each page",
        "archive/segment_writer.py",
        "write_page_checksum=True",
        "write_page_checksum=False",
        (*_SEGMENTS, "-k", "changed_byte"),
    ),
    Planted(
        "all rows of a row group are read, or it is refused",
        "spark/segment_reader.py",
        "                if missing:\n",
        "                if missing < 0:\n",
        (*_SEGMENTS, "-k", "changed_byte"),
    ),
)
