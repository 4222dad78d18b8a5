"""The path for AVX512-VNNI, run on x86 CPUs that may lack it: see vnni_emulated.c."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import outrider.engine
from outrider.engine import Chunk
from outrider.engine.fourbit import FourBit
from outrider.engine.kernels import PackedLinear, Threads, kernels
from outrider.engine.quantize import load_quantized

HERE = Path(__file__).parent
SOURCES = Path(outrider.engine.__file__).parent / "native"
REPLACED = {
    "od_forward": ("emulated_forward", "int(*)(od_pool *, const od_model *, const od_step *)"),
    "od_linear_run": (
        "emulated_linear",
        "int(*)(od_pool *, const od_linear *, const float *, int, float *)",
    ),
    "od_pack_int8": (
        "emulated_pack_int8",
        "void(*)(const int8_t *, const int32_t *, int, int, uint8_t *)",
    ),
}


class Emulation:
    """The kernels' module, with some functions taken from elsewhere."""

    def __init__(self, path: Path) -> None:
        native, loaded = kernels(), ctypes.CDLL(str(path))
        self.ffi = native.ffi
        self.lib = self
        self._own = native.lib
        for name, (symbol, kind) in REPLACED.items():
            address = ctypes.cast(getattr(loaded, symbol), ctypes.c_void_p).value
            setattr(self, name, native.ffi.cast(kind, address))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


@pytest.fixture(scope="module")
def emulation(tmp_path_factory: pytest.TempPathFactory) -> Emulation:
    library = tmp_path_factory.mktemp("vnni") / "emulated.so"
    options = ["-std=gnu11", "-O1", "-ffp-contract=off", "-mavx2", "-mfma", "-mf16c", "-Wno-psabi"]
    command = ["cc", *options, "-shared", "-fPIC", "-pthread", f"-I{SOURCES}", "-o", str(library)]
    sources = [str(HERE / "vnni_emulated.c"), str(SOURCES / "pool.c")]
    subprocess.run([*command, *sources, "-lm"], check=True)
    return Emulation(library)


@pytest.fixture
def both(emulation: Emulation, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Runs something with AVX2, and again with the emulation; gives what came of each."""
    native = kernels()
    before = native.lib.od_isa()
    assert native.lib.od_choose(b"avx2") == 0

    def run(work: Callable[[], Any]) -> tuple[Any, Any]:
        plain = work()
        with monkeypatch.context() as patch:
            for module in ("kernels", "quantized"):
                patch.setattr(f"outrider.engine.{module}.kernels", lambda: emulation)
            return plain, work()

    yield run
    native.lib.od_choose(before)


@pytest.mark.parametrize("inputs", [1, 40, 576, 1100])
def test_int8_layers_give_the_bits_of_avx2(both: Callable[..., Any], inputs: int) -> None:
    draw = torch.Generator().manual_seed(inputs)
    weight = torch.randint(-128, 128, (97, inputs), generator=draw).to(torch.int8)
    scale, bias = torch.rand(97, generator=draw), torch.randn(97, generator=draw)
    order = torch.randperm(97, generator=draw)
    rows = torch.randn(23, inputs, generator=draw) * torch.logspace(-3, 3, 23)[:, None]
    layers = []

    def work() -> torch.Tensor:
        layers.append(PackedLinear.int8(weight, scale, bias, order))
        return layers[-1].run(rows, Threads(2))

    plain, emulated = both(work)
    assert torch.equal(plain, emulated)
    first, second = (layer._packed for layer in layers)
    assert not torch.equal(first, second)  # the emulation has a layout of its own


@pytest.mark.parametrize("inputs", [32, 576, 1696])
def test_int4_layers_give_the_bits_of_avx2(both: Callable[..., Any], inputs: int) -> None:
    draw = torch.Generator().manual_seed(inputs)
    codes = torch.randint(0, 256, (97, inputs // 2), generator=draw).to(torch.uint8)
    steps, offsets = torch.randn(2, 97, inputs // 32, generator=draw).half()
    packed = PackedLinear.int4(FourBit(codes, steps, offsets), torch.randn(97, generator=draw))
    rows = torch.randn(23, inputs, generator=draw)
    plain, emulated = both(lambda: packed.run(rows, Threads(2)))
    assert torch.equal(plain, emulated)


def test_a_whole_model_gives_the_bits_of_avx2(
    both: Callable[..., Any], llama: Any, tokens: list[int]
) -> None:
    used = []

    def work() -> torch.Tensor:
        decoder = load_quantized(llama.folder, threads=Threads(2))
        used.append(decoder._native)
        cache = decoder.new_cache(num_slots=1, max_length=64)
        slot = cache.allocate()
        pieces = (tokens[:30], tokens[30:31], tokens[31:])
        return torch.cat(
            [decoder.forward([Chunk(slot, piece, len(piece))], cache)[0] for piece in pieces]
        )

    plain, emulated = both(work)
    assert torch.equal(plain, emulated)
    assert used[0] is not used[1]
