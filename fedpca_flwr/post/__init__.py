"""A federation by post: questions and replies are files that people carry, and no network is between the sites."""
