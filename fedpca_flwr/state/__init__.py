"""Files that appear complete or not at all, and the store of values that outlive a process."""
