"""Torture of the orderings: writers that hurt, readers that count, and a verdict."""

from harness.torture.round import Verdict, torture
from harness.torture.writers import Mix, two_crews

__all__ = ["LIGHT", "MIXES", "Mix", "Verdict", "torture", "two_crews"]

MIXES = {"postgresql": Mix(), "mariadb": Mix(), "sqlite": Mix(hurting=6, fast=4)}
"""The writers that each database bears: those of SQLite stand in one queue."""

LIGHT = Mix(hurting=4, fast=16, rest=0.02)
"""The writers that mutants are caught by: fast ones, and few that hold everybody back."""
