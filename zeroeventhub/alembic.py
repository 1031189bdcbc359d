"""Keep Alembic's autogenerate from dropping the tables that this package creates by itself."""

from typing import Any

PREFIX = "zeroeventhub_"
"""How the names of all tables begin that this package creates."""


def include_object(
    object: Any,  # noqa: A002, ARG001 - Alembic's name for it
    name: str | None,
    type_: str,
    reflected: bool,
    compare_to: Any,
) -> bool:
    """Leave out a table of this package that is in the database and not in your metadata.

    The tables that you have added to your metadata are compared like your own.

    Example:
        context.configure(
            connection=connection, target_metadata=metadata, include_object=include_object
        )

    Args:
        object: what Alembic compares, such as a table or a column.
        name: its name.
        type_: what it is: "table", "column", "index", …
        reflected: whether it was found in the database.
        compare_to: the same in your metadata; None if it is not there.

    Returns:
        Whether autogenerate compares it.
    """
    is_only_there = reflected and compare_to is None
    return not (type_ == "table" and is_only_there and (name or "").startswith(PREFIX))
