"""A recommendation for one federation: whether to collaborate, with which method, and what to deploy."""
