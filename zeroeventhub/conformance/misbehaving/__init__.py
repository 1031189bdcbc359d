"""A publisher that misbehaves on purpose, scenario by scenario, to try clients on."""

from zeroeventhub.conformance.misbehaving.catalogue import all_scenarios, expand
from zeroeventhub.conformance.misbehaving.scenario import Scenario
from zeroeventhub.conformance.misbehaving.web import misbehave, misbehaving

__all__ = ["Scenario", "all_scenarios", "expand", "misbehave", "misbehaving"]
