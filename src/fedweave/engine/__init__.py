"""The protocol of all methods, the clients' data together, and the engine that runs rounds."""
