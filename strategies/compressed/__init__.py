"""COMPRESSED: the scatter in few bits."""
