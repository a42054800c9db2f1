"""Compare four methods on handwritten digits of ten clients: python examples/quickstart.py"""

from sklearn.datasets import load_digits

import fedweave as fw


def main() -> None:
    """Train, compare, save."""
    digits = load_digits()
    writer = [f"writer {label // 2}{'a' if i % 2 else 'b'}" for i, label in enumerate(digits.target)]  # two digits each
    split = {"train": 0.1, "val": 0.1, "test": 0.8}  # few rows to learn from, so that collaboration matters
    federation = fw.Federation.from_arrays(
        digits.images[:, None] / 16, digits.target, client=writer, split=split, name="digits"
    )
    print(federation.describe())

    methods = ["local", "fedavg", "pfedgraph", fw.methods.Ditto(lam=0.5)]
    comparison = fw.compare(federation, methods, model="mlp", rounds=8, lr=0.1)
    print(comparison)
    print(comparison.test("pfedgraph", "local"))
    print(comparison["pfedgraph"].graph().round(2).to_string())


if __name__ == "__main__":
    main()
