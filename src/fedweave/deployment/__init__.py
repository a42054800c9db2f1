"""A run as a federation of real hosts: what server and nodes compute, and Flower as the transport.

Server and nodes use the same `Method` object as the simulation. Only what `spec.json` declares leaves a node.
"""
