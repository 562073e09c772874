"""Mathematics of the methods, by topic: NumPy and SciPy only, without input or output."""
