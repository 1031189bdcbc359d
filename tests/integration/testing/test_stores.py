"""Databases and stores of tests."""

import asyncio
import gc
from pathlib import Path

from sqlalchemy import Column, Integer, MetaData, Table, func, inspect, select

from zeroeventhub.testing import async_sqlite_engine, async_store_of, sqlite_engine, store_of

metadata = MetaData()
numbers = Table("numbers", metadata, Column("n", Integer))


def test_database_is_removed_with_its_engine():
    """Nothing is left of a database once its engine is dropped."""
    folders = []
    for make in (sqlite_engine, async_sqlite_engine):
        engine = make()
        folders.append(Path(engine.url.database).parent)
        assert folders[-1].exists()
        del engine
        gc.collect()
    assert [folder.exists() for folder in folders] == [False, False]


def test_reader_sees_what_was_committed_beside_a_writer():
    """A connection reads while another one writes, as where a handler looks something up."""
    engine = sqlite_engine()
    metadata.create_all(engine)
    with engine.begin() as writer:
        writer.execute(numbers.insert().values(n=1))
        with engine.connect() as reader:
            assert reader.scalar(select(func.count()).select_from(numbers)) == 0


def test_store_has_all_tables():
    """The tables of the store and those that are prepared are there, sync and async."""
    expected = {"zeroeventhub_cursors", "zeroeventhub_inbox", "numbers"}
    assert expected <= {*inspect(store_of(metadata.create_all).engine).get_table_names()}
    assert "numbers" not in inspect(store_of().engine).get_table_names()

    async def names():
        async with async_store_of(metadata.create_all).engine.connect() as connection:
            return await connection.run_sync(lambda one: inspect(one).get_table_names())

    assert expected <= {*asyncio.run(names())}
