"""What may be asked about rows, columns and graphs, and how the pooled statistic is had from it.

However answers travel: a statistic that can be had in several ways says so once, for all methods that use it.
"""
