"""A Flower app: logistic regression by FedAvg, in NumPy."""
