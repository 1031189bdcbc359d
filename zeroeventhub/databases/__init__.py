"""What differs between PostgreSQL, MariaDB, MySQL and SQLite."""
