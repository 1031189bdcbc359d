"""One request and its answer, within limits and without I/O."""
