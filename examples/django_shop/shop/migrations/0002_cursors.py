"""Create the tables of consumers."""

from typing import Any

from django.conf import settings
from django.db import migrations

from zeroeventhub import CursorStore


def create(_: Any, editor: Any) -> None:
    """Create the tables through Django's connection, in the transaction of the migration."""
    CursorStore(settings.ENGINE).create_tables(editor.connection.connection)


def drop(_: Any, editor: Any) -> None:
    """Drop them."""
    for table in CursorStore(settings.ENGINE).tables.all():
        editor.execute(f"DROP TABLE {table.name}")


class Migration(migrations.Migration):
    """Create the tables of consumers."""

    dependencies = (("shop", "0001_initial"),)
    operations = (migrations.RunPython(create, drop),)
