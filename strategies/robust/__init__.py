"""ROBUST: the strategy is in `method`; the options and a party are in `party`."""
