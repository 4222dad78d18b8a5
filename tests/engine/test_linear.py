from __future__ import annotations

import pytest
import torch

from outrider.engine.linear import Linear, packing_available


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 7, 33])
def test_a_linear_layer_multiplies_and_adds(dtype: torch.dtype, biased: bool, rows: int) -> None:
    torch.manual_seed(0)
    weight, inputs = torch.randn(24, 40).to(dtype), torch.randn(rows, 40).to(dtype)
    bias = torch.randn(24).to(dtype) if biased else None
    expected = inputs.double() @ weight.double().t() + (bias.double() if biased else 0.0)
    found = Linear(weight, bias)(inputs)
    assert found.dtype == dtype
    tolerance = 0.1 if dtype == torch.bfloat16 else 1e-4
    assert (found.double() - expected).abs().max() < tolerance


def test_inputs_may_be_a_strided_view() -> None:
    torch.manual_seed(0)
    weight, inputs = torch.randn(24, 40), torch.randn(5, 80)
    found = Linear(weight)(inputs[:, 40:])
    assert torch.allclose(found, inputs[:, 40:] @ weight.t(), atol=1e-4)


def test_float32_weights_are_packed_where_the_operator_works() -> None:
    assert Linear(torch.randn(4, 4)).packed is packing_available()
    assert Linear(torch.randn(4, 4).bfloat16()).packed is False


def test_without_the_operator_the_plain_weight_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.engine.linear.packing_available", lambda: False)
    weight, inputs = torch.randn(24, 40), torch.randn(3, 40)
    layer = Linear(weight)
    assert layer.packed is False
    assert torch.allclose(layer(inputs), inputs @ weight.t(), atol=1e-4)


@pytest.mark.parametrize("shape", [(960, 576), (576, 1536), (97, 64)])
def test_packed_rows_are_the_same_to_the_last_bit_whatever_their_number(
    shape: tuple[int, int],
) -> None:
    torch.manual_seed(0)
    layer = Linear(torch.randn(*shape))
    inputs = torch.randn(33, shape[1])
    full = layer(inputs)
    equal = [torch.equal(layer(inputs[:rows]), full[:rows]) for rows in (1, 2, 3, 5, 8, 16, 32)]
    assert all(equal) or not layer.packed
