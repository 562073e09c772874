"""Clusters of the scores of all rows, and Harmony."""
