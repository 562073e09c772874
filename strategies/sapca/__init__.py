"""SAPCA: subspaces of streams."""
