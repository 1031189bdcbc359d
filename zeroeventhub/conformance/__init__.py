"""Check a publisher in any language against the specification, from outside and read-only."""

from zeroeventhub.conformance.check import Check, Outcome, Result, all_checks
from zeroeventhub.conformance.run import check_feed

__all__ = ["Check", "Outcome", "Result", "all_checks", "check_feed"]
