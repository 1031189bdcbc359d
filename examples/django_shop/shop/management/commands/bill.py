"""Bill the orders of a feed."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db import connection, transaction
from shop.models import Invoice

from zeroeventhub import Client, Consumer, CursorStore


class Command(BaseCommand):
    """Write an invoice for each order of a feed."""

    help = "Write an invoice for each order of a feed."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the feed's address."""
        parser.add_argument("url")

    def handle(self, *, url: str, **_: Any) -> None:
        """Commit each page and its invoices in one transaction."""
        for page in Consumer(Client(url), CursorStore(settings.ENGINE), "billing"):
            with transaction.atomic():
                page.commit(connection.connection)
                Invoice.objects.bulk_create(Invoice(**event.data) for event in page.events)
