"""Land events in tables, a page at a time."""

from zeroeventhub.landing.event_rows import insert_events
from zeroeventhub.landing.landing_table import LandingTable

__all__ = ["LandingTable", "insert_events"]
