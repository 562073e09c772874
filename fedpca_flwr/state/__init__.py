"""Files that are written whole or not at all, and the store of what outlives a process."""
