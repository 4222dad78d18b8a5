"""The compiled linear layers against whole-number arithmetic, and the threads that run them."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outrider.engine.fourbit import FourBit
from outrider.engine.kernels import PackedLinear, Threads, kernels, kernels_available, pointer
from outrider.errors import ConfigError
from tests.engine.rounding import rounded

SHAPES = [(1, 1), (7, 8), (16, 32), (17, 33), (40, 100), (97, 64), (130, 576), (33, 1100)]
FOUR_BIT_SHAPES = [(1, 32), (7, 64), (16, 96), (40, 160), (97, 64), (33, 1696)]
ROWS = [1, 2, 3, 4, 5, 7, 8, 17, 31, 40]


@pytest.fixture(scope="module")
def threads() -> Threads:
    return Threads(2)


@pytest.fixture
def choose() -> Iterator[Any]:
    """Switches the instruction set, and says whether there is such a one; switched back later."""
    native = kernels()
    before = native.lib.od_isa()
    yield lambda name: native.lib.od_choose(name.encode()) == 0
    native.lib.od_choose(before)


def random_rows(rows: int, inputs: int, seed: int = 0) -> torch.Tensor:
    """Rows of very different sizes."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, inputs, generator=draw) * torch.logspace(-3, 3, rows)[:, None]


class Int8:
    """A random layer, and what it should give."""

    def __init__(self, outputs: int, inputs: int, *, biased: bool = True) -> None:
        draw = torch.Generator().manual_seed(outputs + inputs)
        self.codes = torch.randint(-127, 128, (outputs, inputs), generator=draw, dtype=torch.int8)
        self.scale = torch.rand(outputs, generator=draw) + 0.1
        self.bias = torch.randn(outputs, generator=draw) if biased else None

    def packed(self, order: torch.Tensor | None = None) -> PackedLinear:
        return PackedLinear.int8(self.codes, self.scale, self.bias, order)

    def expected(self, rows: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Results, and the sums of the sizes of all that was added up."""
        codes, scales = rounded(rows.numpy())
        weights = np.pad(self.codes.long().numpy(), ((0, 0), (0, -rows.shape[1] % 32)))
        sums = np.einsum("ngi,ogi->nog", codes, weights.reshape(len(weights), -1, 32))
        terms = sums * scales[:, None] * self.scale.double().numpy()[:, None]
        bias = np.zeros(len(weights)) if self.bias is None else self.bias.double().numpy()
        return terms.sum(axis=-1) + bias, np.abs(terms).sum(axis=-1) + np.abs(bias)


class Int4:
    """A random layer, and what it should give."""

    def __init__(self, outputs: int, inputs: int, *, biased: bool = True) -> None:
        draw = torch.Generator().manual_seed(outputs + inputs)
        groups = (outputs, inputs // 32)
        self.weight = FourBit(
            torch.randint(0, 256, (outputs, inputs // 2), generator=draw, dtype=torch.uint8),
            torch.randn(groups, generator=draw).half(),
            torch.randn(groups, generator=draw).half() * 5,
        )
        self.bias = torch.randn(outputs, generator=draw) if biased else None

    def packed(self, order: torch.Tensor | None = None) -> PackedLinear:
        return PackedLinear.int4(self.weight, self.bias, order)

    def expected(self, rows: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Results, and the sums of the sizes of all that was added up."""
        codes, scales = rounded(rows.numpy())
        weights = self.weight.unpacked().long().numpy()
        sums = np.einsum("ngi,ogi->nog", codes, weights.reshape(len(weights), -1, 32))
        steps, offsets = (
            part.double().numpy() for part in (self.weight.steps, self.weight.offsets)
        )
        terms = np.stack((sums * steps, codes.sum(axis=-1)[:, None] * offsets)) * scales[:, None]
        bias = np.zeros(len(weights)) if self.bias is None else self.bias.double().numpy()
        sizes = np.abs(terms).sum(axis=(0, -1)) + np.abs(bias)
        return terms.sum(axis=(0, -1)) + bias, sizes


def agree(found: torch.Tensor, expected: tuple[np.ndarray, np.ndarray]) -> bool:
    values, sizes = expected
    return bool((np.abs(found.double().numpy() - values) <= 2e-6 * sizes).all())


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("kind", "shape"),
    [(Int8, shape) for shape in SHAPES] + [(Int4, shape) for shape in FOUR_BIT_SHAPES],
)
def test_a_layer_of_any_shape_is_exact_but_for_the_rounding_of_its_inputs(
    kind: Any, shape: tuple[int, int], biased: bool, threads: Threads
) -> None:
    layer = kind(*shape, biased=biased)
    packed = layer.packed()
    for count in ROWS:
        rows = random_rows(count, shape[1])
        found = packed.run(rows, threads)
        assert found.shape == (count, shape[0])
        assert agree(found, layer.expected(rows))


@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512vnni"])
@pytest.mark.parametrize("layer", [Int8(40, 100), Int4(40, 160)], ids=["int8", "int4"])
def test_every_instruction_set_gives_the_same_to_rounding(
    layer: Any, isa: str, threads: Threads, choose: Any
) -> None:
    there = choose(isa)
    assert there or isa != "portable"
    rows = random_rows(9, layer.packed().inputs)
    assert agree(layer.packed().run(rows, threads), layer.expected(rows))
    assert there is (kernels().ffi.string(kernels().lib.od_isa()).decode() == isa)


@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512vnni"])
@pytest.mark.parametrize("layer", [Int8(97, 1100), Int4(97, 1696)], ids=["int8", "int4"])
def test_a_rows_bits_depend_on_nothing_but_the_row(layer: Any, isa: str, choose: Any) -> None:
    choose(isa)
    packed = layer.packed()
    rows = random_rows(133, packed.inputs)
    full = packed.run(rows, Threads(1))
    for count in (1, 2, 3):
        threads = Threads(count)
        assert torch.equal(packed.run(rows, threads), full)
        assert torch.equal(packed.run(rows.flip(0), threads), full.flip(0))
        for first, last in ((0, 1), (5, 7), (2, 5), (9, 13), (60, 65), (100, 117), (4, 133)):
            assert torch.equal(packed.run(rows[first:last], threads), full[first:last])


@pytest.mark.parametrize("layer", [Int8(40, 100), Int4(40, 160)], ids=["int8", "int4"])
def test_outputs_may_be_put_in_another_order(layer: Any, threads: Threads) -> None:
    rows = random_rows(3, layer.packed().inputs)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    found = layer.packed(order).run(rows, threads)
    assert torch.equal(found, layer.packed().run(rows, threads)[:, order])


def test_weights_may_be_a_strided_view(threads: Threads) -> None:
    layer, rows = Int8(40, 100), random_rows(3, 100)
    transposed = layer.codes.T.contiguous().T
    found = PackedLinear.int8(transposed, layer.scale, layer.bias).run(rows, threads)
    assert torch.equal(found, layer.packed().run(rows, threads))


@pytest.mark.parametrize("layer", [Int8(17, 64), Int4(17, 64)], ids=["int8", "int4"])
def test_no_rows_give_no_rows(layer: Any, threads: Threads) -> None:
    assert layer.packed().run(torch.empty(0, 64), threads).shape == (0, 17)


@pytest.mark.parametrize("tiny", [0.0, 1e-45, 1e-38])
@pytest.mark.parametrize("layer", [Int8(17, 64), Int4(17, 64)], ids=["int8", "int4"])
def test_inputs_of_next_to_nothing_give_the_bias(layer: Any, tiny: float, threads: Threads) -> None:
    found = layer.packed().run(torch.full((2, 64), tiny), threads)
    assert torch.equal(found, layer.bias.expand(2, -1))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("layer", [Int8(17, 64), Int4(17, 64)], ids=["int8", "int4"])
def test_what_is_not_finite_spoils_its_own_row_alone(
    layer: Any, bad: float, threads: Threads
) -> None:
    rows = random_rows(5, 64)
    good = layer.packed().run(rows, threads)
    rows[2, 40] = bad
    found = layer.packed().run(rows, threads)
    assert found[2].isnan().all()
    others = [0, 1, 3, 4]
    assert torch.equal(found[others], good[others])


def test_huge_inputs_are_rounded_like_others(threads: Threads) -> None:
    layer = Int8(17, 64)
    rows = random_rows(4, 64).sign() * 1e34
    assert agree(layer.packed().run(rows, threads), layer.expected(rows))


def test_tensors_that_do_not_fit_together_are_refused() -> None:
    layer, four = Int8(17, 64), Int4(17, 64).weight
    with pytest.raises(ValueError, match=r"shape \[16\] must be \[17\]"):
        PackedLinear.int8(layer.codes, layer.scale[:16], None)
    with pytest.raises(ValueError, match=r"shape \[18\] must be \[17\]"):
        PackedLinear.int8(layer.codes, layer.scale, torch.zeros(18))
    with pytest.raises(ValueError, match="order of 17 outputs names one that there is not"):
        PackedLinear.int8(layer.codes, layer.scale, None, torch.arange(1, 18))
    with pytest.raises(ValueError, match=r"shape \[17, 28\] must be \[17, 16\]"):
        PackedLinear.int4(FourBit(four.codes[:, :28], four.steps, four.offsets), None)
    with pytest.raises(ValueError, match=r"shape \[17, 1\] must be \[17, 2\]"):
        PackedLinear.int4(FourBit(four.codes, four.steps[:, :1], four.offsets), None)
    with pytest.raises(ValueError, match=r"shape \[2, 63\] must be \[2, 64\]"):
        layer.packed().run(torch.zeros(2, 63), Threads(1))
    with pytest.raises(TypeError, match=r"torch.float64 .* is no float \*"):
        layer.packed().run(torch.zeros(2, 64).double(), Threads(1))
    with pytest.raises(TypeError, match="strides"):
        pointer(torch.zeros(4, 6)[:, :3], "float *")


def test_an_unknown_instruction_set_is_refused(choose: Any) -> None:
    assert not choose("abacus")


@pytest.mark.parametrize("count", [0, -1])
def test_a_pool_of_no_threads_is_refused(count: int) -> None:
    with pytest.raises(ConfigError, match=f"{count} compute threads cannot be started"):
        Threads(count)


def test_several_callers_at_once_each_get_their_own_results() -> None:
    threads, layer = Threads(3), Int8(40, 100).packed()
    inputs = [random_rows(count, 100, seed=count) for count in range(1, 9)]
    expected = [layer.run(rows, threads) for rows in inputs]

    def work(turn: int) -> bool:
        which = turn % len(inputs)
        return torch.equal(layer.run(inputs[which], threads), expected[which])

    with ThreadPoolExecutor(4) as callers:
        assert all(callers.map(work, range(400)))


def test_pools_that_come_and_go_leave_no_thread() -> None:
    tasks = Path("/proc/self/task")
    layer, rows = Int8(40, 100).packed(), random_rows(2, 100)
    first = layer.run(rows, Threads(1))
    before = len(list(tasks.iterdir()))
    for turn in range(200):
        threads = Threads(3)
        if turn % 2:
            assert torch.equal(layer.run(rows, threads), first)
        del threads
    assert len(list(tasks.iterdir())) <= before


def test_a_pool_that_is_idle_sleeps_and_wakes_up() -> None:
    threads, layer, rows = Threads(2), Int8(40, 100).packed(), random_rows(2, 100)
    first = layer.run(rows, threads)
    for _ in range(5):
        threading.Event().wait(0.01)
        assert torch.equal(layer.run(rows, threads), first)


def test_memory_that_runs_out_is_an_error_of_python(threads: Threads) -> None:
    with pytest.raises(MemoryError, match="no memory left"):
        threads.call(lambda *_: -1)


def test_an_installation_without_the_kernels_says_what_is_missing() -> None:
    program = (
        "import sys; sys.modules['outrider._native'] = None\n"
        "from outrider.engine.kernels import kernels, kernels_available\n"
        "assert not kernels_available()\n"
        "kernels()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "ConfigError: int8 and int4 need compiled kernels" in done.stderr


def test_the_kernels_are_built_here() -> None:
    assert kernels_available()
