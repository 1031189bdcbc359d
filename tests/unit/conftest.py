"""How Hypothesis runs: for as long as an example takes, on a machine that may be busy."""

from hypothesis import settings

settings.register_profile("unit", deadline=None)
settings.load_profile("unit")
