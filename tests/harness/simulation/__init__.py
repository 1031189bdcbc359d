"""A deterministic simulation: one feed, a network, a store, and processes that share a name.

The decisions are the real ones. Everything around them is simulated, and a seed says what happens
when: what is published, what is lost, who pauses, who dies. See `world.World`.
"""
