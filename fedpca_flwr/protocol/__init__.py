"""Questions and replies of a run on Flower: declared, checked, recorded and driven."""
