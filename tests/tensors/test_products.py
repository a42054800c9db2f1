"""Large products by the faster library: in float32, on the processors that need it, with the user's setting kept."""

from typing import Any

import pytest
import torch

from fedweave.tensors import products

AMD = "vendor_id\t: AuthenticAMD\nflags\t\t: fpu avx2 avx512f avx512_bf16\n"
matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]


def test_only_amd_processors_with_wide_vectors_and_without_matrix_units_need_it() -> None:
    assert products.needs_onednn(AMD)
    assert not products.needs_onednn(AMD.replace("AuthenticAMD", "GenuineIntel"))
    assert not products.needs_onednn(AMD.replace("avx512f ", ""))
    assert not products.needs_onednn(AMD.replace("avx512f", "avx512f amx_bf16"))
    assert not products.needs_onednn("")


def test_the_setting_is_changed_for_large_tensors_only_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "has_fast_products", lambda: True)
    before, large = matmul.fp32_precision, {"table": torch.zeros(products.LARGE)}
    with products.use_fast_products(torch.zeros(products.LARGE - 1)):
        assert matmul.fp32_precision == before
    seen = []

    def fail() -> None:
        with products.use_fast_products({}, large):
            seen.append(matmul.fp32_precision)
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()
    assert (seen, matmul.fp32_precision) == (["bf16"], before)


@pytest.mark.skipif(not products.has_fast_products(), reason="not an AMD processor with AVX-512")
@pytest.mark.parametrize("shape", [(512, 512, 512), (100, 128, 5000), (128, 100, 5000), (100, 5000, 128), (3, 700, 5)])
def test_products_have_the_errors_of_float32(shape: tuple[int, int, int]) -> None:
    """bfloat16 would have ten thousand times the error of float32."""
    torch.manual_seed(0)
    rows, inner, columns = shape
    a, b = torch.randn(rows, inner), torch.randn(inner, columns)
    exact = a.double() @ b.double()
    with products.use_fast_products(torch.zeros(products.LARGE)):
        fast = a @ b
    error, usual = ((result.double() - exact).abs().max() for result in (fast, a @ b))
    assert error <= 8 * usual
