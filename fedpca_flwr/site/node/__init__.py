"""The running site: its process, identity, certificates, doctor and metrics."""
