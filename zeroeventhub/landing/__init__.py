"""Land events in tables, a page at a time."""

from zeroeventhub.landing.event_rows import insert_events, prepare_rows
from zeroeventhub.landing.landing_table import LandingTable
from zeroeventhub.landing.table_form import TableForm, table_form

__all__ = ["LandingTable", "TableForm", "insert_events", "prepare_rows", "table_form"]
