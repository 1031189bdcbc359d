"""Read histories in bulk, as columns: planned in ranges, and read from pages and files."""
