"""The result of a run, its file, its summary, and the moments that a run may keep."""
