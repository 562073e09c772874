"""Programs that a person runs: a federated PCA from Python, benchmarks, deployment."""

ENGINES = ("loopback", "ray")  # where a run's parties are: in this process, or in Flower's simulation
