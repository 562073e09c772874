"""Blind runs, whose server sees sums of rotated rows: stage, transport, rotation, tags, and the rotated vault."""
