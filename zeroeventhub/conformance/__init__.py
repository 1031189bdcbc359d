"""Check a publisher in any language against the specification, from outside and read-only."""

from zeroeventhub.conformance.catalogue import all_checks
from zeroeventhub.conformance.finding import Outcome, Result
from zeroeventhub.conformance.registry import Check
from zeroeventhub.conformance.run import check_feed

__all__ = ["Check", "Outcome", "Result", "all_checks", "check_feed"]
