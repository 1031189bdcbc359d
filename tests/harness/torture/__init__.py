"""Torture of the orderings: writers that hurt, readers that count, and a verdict."""

from harness.torture.round import Verdict, torture
from harness.torture.writers import Mix, two_crews

__all__ = ["MIXES", "Mix", "Verdict", "torture", "two_crews"]

MIXES = {"postgresql": Mix(), "mariadb": Mix(), "sqlite": Mix(hurting=6, fast=4)}
"""The writers that each database bears: those of SQLite stand in one queue."""
