"""The stages of DVC, each a module with a function `main`."""
