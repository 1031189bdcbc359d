"""Read partitions side by side, in threads or in tasks."""
