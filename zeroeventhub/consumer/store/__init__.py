"""What lies in a consumer's own database: its cursors, leases, inbox and dead letters."""
