"""Questions about rows, columns and graphs, and the pooled statistics that the replies give.

No module here depends on how replies travel. A statistic that can be computed in several ways is defined once, for all
methods that use it.
"""
