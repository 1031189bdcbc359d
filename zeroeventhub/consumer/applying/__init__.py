"""Apply a page: what `apply` is given, and the transactions around it."""
