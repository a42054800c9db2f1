"""Guards of the contract between methods and the engine: what hooks draw, return, keep and weigh."""
