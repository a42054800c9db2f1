"""How the rows of a data set are divided among clients, and into train, validation and test."""
