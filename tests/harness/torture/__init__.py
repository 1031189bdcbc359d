"""Torture of the orderings: writers that hurt, readers that count, and a verdict."""

from harness.torture.crew import Crew
from harness.torture.mix import LIGHT, MIXES, Mix
from harness.torture.round import torture
from harness.torture.strategies import STRATEGIES
from harness.torture.verdict import Verdict

__all__ = ["LIGHT", "MIXES", "STRATEGIES", "Crew", "Mix", "Verdict", "torture"]
