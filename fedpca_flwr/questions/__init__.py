"""Questions about rows, columns and graphs, and pooled statistics; each is defined once, however replies travel."""
