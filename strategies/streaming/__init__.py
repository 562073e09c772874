"""STREAMING: moments that are kept from run to run."""
