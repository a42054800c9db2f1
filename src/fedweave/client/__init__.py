"""What runs at one client: its data, its task, local solvers and local training."""
