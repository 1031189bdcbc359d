"""Check a publisher in any language against the specification, from outside."""

import zeroeventhub.conformance.checks  # noqa: F401 - registers the checks
from zeroeventhub.conformance.answer import Outcome
from zeroeventhub.conformance.check import Check, Result, all_checks, check_feed

__all__ = ["Check", "Outcome", "Result", "all_checks", "check_feed"]
