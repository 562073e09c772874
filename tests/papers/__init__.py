"""Methods beside the documents that they come from."""
