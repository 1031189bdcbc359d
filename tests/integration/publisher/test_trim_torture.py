"""Writers, readers and somebody who trims, side by side: nobody passes over an event in silence."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.shop import metadata
from harness.trim_torture import Reading, RegisteredReading, source, trim, truth, write
from sqlalchemy import select

TRIMS = 15
WRITERS = 2
READERS = 4


@pytest.mark.parametrize("seed", range(2))
def test_nobody_passes_over_an_event_in_silence(engine, database_url, seed):
    """Beside writers and trimming every stretch that a reader reads without being refused has all
    events of its partition, in order.
    """
    metadata.create_all(engine)
    truth.metadata.create_all(engine)
    with engine.begin() as connection:
        source().install(connection)
    written = threading.Event()
    readers = [Reading(f"{seed} {number}") for number in range(READERS)]
    registered = RegisteredReading(f"{seed} registered")
    readers.append(registered)
    with ThreadPoolExecutor(WRITERS + READERS + 2) as pool:
        running = [pool.submit(reader.run, database_url, written) for reader in readers]
        trims = []
        trimming = pool.submit(trim, database_url, seed, written, trims)

        def enough():
            return len(trims) > TRIMS and any(reader.refused for reader in readers)

        writing = [
            pool.submit(write, database_url, f"{seed} {number}", enough)
            for number in range(WRITERS)
        ]
        try:
            for each in writing:
                each.result(60)
        finally:
            written.set()
        for each in running:
            each.result(60)
        trimming.result(60)
    with engine.connect() as connection:
        known = sorted(tuple(row) for row in connection.execute(select(truth.c.id, truth.c.part)))
    for reader in readers:
        assert reader.stretches
        for start, end, seen in reader.stretches:
            expected = [
                key for key, part in known if part == reader.partition and start < key <= end
            ]
            assert seen == expected, (start, end)
    assert enough()
    assert registered.refused == 0
