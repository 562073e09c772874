"""What may be asked about rows, columns and graphs, and how the pooled statistic is had from it, however answers travel."""
