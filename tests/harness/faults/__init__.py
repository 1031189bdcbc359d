"""Faults of the wire: connections that break as a plan says, and what is read through them."""
