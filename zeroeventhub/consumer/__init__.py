"""Follow a feed: pages in, effects and cursor committed in one transaction."""
