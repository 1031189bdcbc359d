"""A deterministic simulation: the real decisions, and all around them as a seed says."""
