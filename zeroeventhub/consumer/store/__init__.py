"""The tables in a consumer's own database: cursors, leases, inbox, dead letters, lanes."""
