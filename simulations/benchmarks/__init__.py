"""What the README claims, measured: each script prints its table."""
