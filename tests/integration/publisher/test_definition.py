"""A feed announces the extensions that its options make possible."""

import pytest
from harness.published import published

from zeroeventhub.archive import Archive
from zeroeventhub.extensions import (
    CAUGHT_UP,
    COMPACTED,
    CURSOR_OF_COUNT,
    CURSOR_OF_TIME,
    EVENT_TYPES,
    FORGET_PROGRESS,
    LAG,
    PROGRESS,
    SEGMENTS,
    SPLITS,
    STOP,
    WAIT,
)
from zeroeventhub.publisher.progress import Progress
from zeroeventhub.publisher.retention import Compaction, Retention

ALWAYS = {CAUGHT_UP, CURSOR_OF_COUNT, LAG, SPLITS, STOP, WAIT}


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({}, set()),
        ({"type": "kind"}, {EVENT_TYPES}),
        ({"cloudevents": True}, {EVENT_TYPES}),
        ({"time": "placed"}, {CURSOR_OF_TIME}),
        ({"ordering": "sequenced"}, {CURSOR_OF_TIME}),
        ({"ordering": "sequenced", "time": "customer"}, set()),
        ({"progress": Progress()}, {PROGRESS, FORGET_PROGRESS}),
        ({"retention": Retention(), "key": "kind", "compaction": Compaction()}, {COMPACTED}),
    ],
)
def test_extensions_are_those_of_the_options(sqlite, options, more):
    """What readers may ask for follows from what a feed is made from."""
    assert published(sqlite, **options).info().extensions == ALWAYS | more


def test_files_are_announced_where_they_are_shared(sqlite, tmp_path):
    """A feed whose archive shares its files announces them; the archive itself does not show."""
    for shared, more in ((None, set()), (tmp_path.as_uri(), {SEGMENTS})):
        archive = Archive(tmp_path, shared=shared)
        feed = published(sqlite, retention=Retention(), archive=archive)
        assert feed.info().extensions == ALWAYS | more
