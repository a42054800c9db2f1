"""fedweave: personalized federated learning methods, trained, tuned and compared on equal terms."""

__version__ = "0.1.0"
