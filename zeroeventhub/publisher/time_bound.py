"""PostgreSQL's deadlines, as they are set for one transaction."""

import math

__all__ = ["time_bound"]


def time_bound(setting: str, seconds: float) -> str:
    """Return the expression that sets a time, unless the host allows less.

    Args:
        setting: its name, such as lock_timeout.
        seconds: what it is set to.
    """
    # The setting is text such as 30s, and 0 for none.
    return (
        f"set_config('{setting}', CAST(least(nullif(CAST(extract(epoch FROM "
        f"CAST(current_setting('{setting}') AS interval)) * 1000 AS bigint), 0), "
        f"{math.ceil(seconds * 1000)}) AS text), true)"
    )
