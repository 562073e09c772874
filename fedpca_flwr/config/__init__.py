"""What a run and a site are told: the run-config, the node-config and the text of a method."""
