"""What do bfloat16, int8 and int4 change in what a model predicts?

Every arm reads the same tokens as the reference, which is the file's own weights in float32:
windows of English (`pydoc_data.topics`), of Python code (the standard library's), and the
reference's own greedy answers to the prompts. Beside the engine's types stand the file's weights
rounded once more to formats of GGUF, and to those of int8 alone, all computed in float32.

    python scripts/quality.py MODEL ... --prompts PROMPTS.jsonl --report FILE.md

Sums are kept in the report's `.jsonl` sibling; what other runs left there is reported too.
"""

from __future__ import annotations

import argparse
import heapq
import inspect
import json
import math
import platform
import pydoc_data.topics
import shlex
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, dequantize, quantize
from rich.progress import Progress
from torch import Tensor

from outrider.bench import read_prompts
from outrider.config import Settings, load_settings
from outrider.engine import Chunk, Decoder, TorchDecoder, load_decoder
from outrider.engine.linear import Linear
from outrider.engine.quantize import round_int8
from outrider.engine.weights import Affine, floats, layer_over, open_tensors
from outrider.models import load_text_assets, resolve
from outrider.text import ChatTemplate, HFTokenizer

REFERENCE = "float32"
ENGINE = ("bfloat16", "int8", "int4")
Rounding = Callable[[Tensor], Tensor]
Sums = dict[str, list[list[float]]]
Row = dict[str, Any]
CODE = (argparse, heapq, statistics, tempfile)
PIECE = 64  # positions that the bootstrap draws together
RESAMPLES = 2000
HEADER = """\
# What number formats change in a model's predictions

The reference is the file's own weights, exactly as they are in it, computed in float32: for a file
of 4-bit weights (`q4_k_m`, `q4_1`) it is that format itself with exact arithmetic, so a ratio of 1
means that nothing is lost beyond the file. No better weights of these models enter.

All arms read the same tokens: windows of English prose (`pydoc_data.topics`) and of Python code
(the standard library's), and prompts with the reference's own greedy answers, of which the answers
alone count; there "same argmax" is the share of greedy tokens that agree. Divergence is the mean of
KL(reference || arm). Intervals are 95% percentile bootstraps over pieces of 64 positions.

bfloat16, int8 and int4 are the engine's types: weights and arithmetic. int4 takes the file's 4-bit
weights as they are. "int8 weights" are the weights of int8 with float32 arithmetic: what int8 has
beyond that is its rounding of activations. Q8_0, Q4_1 and Q4_0 are the file's weights rounded once
more to these formats of GGUF (for the latter two, embedding and head to Q8_0), in float32
arithmetic; llama.cpp itself rounds activations to 8 bits besides.
"""


@dataclass(frozen=True)
class Window:
    """Tokens, the last `scored` of which are predicted."""

    text: str
    ids: list[int]
    scored: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("models", nargs="+", help="names, or GGUF files")
    parser.add_argument("--arms", default=",".join((*ENGINE, *ROUNDINGS)))
    parser.add_argument("--windows", type=int, default=8, help="of English, and as many of code")
    parser.add_argument("--context", type=int, default=512, help="tokens of a window")
    parser.add_argument("--prompts", type=Path, action="append", default=[])
    parser.add_argument("--limit", type=int, default=8, help="prompts of each file, evenly spread")
    parser.add_argument("--answer", type=int, default=96, help="tokens of an answer at most")
    parser.add_argument("--report", type=Path, required=True)
    arguments = parser.parse_args()
    settings = load_settings()
    kept = arguments.report.with_suffix(".jsonl")
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    for model in arguments.models:
        name = Path(model).name.removesuffix(".gguf")
        for arm, sums in _measure(model, arguments, settings):
            rows = [row for row in rows if (row["model"], row["arm"]) != (name, arm)]
            made = {"command": _command(), "python": platform.python_version()}
            rows.append({"model": name, "arm": arm, **made, "sums": sums})
            kept.write_text("".join(json.dumps(row) + "\n" for row in rows))
            arguments.report.write_text(_report(rows))
    print(_report(rows))


def _measure(
    model: str, arguments: argparse.Namespace, settings: Settings
) -> Iterator[tuple[str, Sums]]:
    """Each arm's name, and by text its sums over pieces: positions, -log p of the reference and of
    the arm, divergence, positions of the same argmax.
    """
    with tempfile.TemporaryDirectory() as folder, Progress() as progress:
        task = progress.add_task(f"{model}: reference")
        decoder = _load(model, REFERENCE, settings)
        windows = _windows(model, decoder, arguments, settings)
        files = [Path(folder) / f"{index}.npy" for index in range(len(windows))]
        progress.update(task, total=len(windows))
        for window, file in zip(windows, files, strict=True):
            np.save(file, _log_probs(decoder, window).numpy())
            progress.advance(task)
        for arm in arguments.arms.split(","):
            del decoder  # two of them may not fit
            task = progress.add_task(f"{model}: {arm}", total=len(windows))
            decoder = _load(model, arm, settings)
            sums: Sums = {}
            for window, file in zip(windows, files, strict=True):
                reference = torch.from_numpy(np.load(file, mmap_mode="c"))
                found = _log_probs(decoder, window)
                sums.setdefault(window.text, []).extend(_compare(reference, found, window))
                progress.advance(task)
            yield arm, sums


def _compare(reference: Tensor, found: Tensor, window: Window) -> list[list[float]]:
    targets = torch.tensor(window.ids[-window.scored :]).unsqueeze(1)
    pieces = []
    for start in range(0, window.scored, PIECE):
        here = slice(start, start + PIECE)
        was, now, wanted = reference[here], found[here], targets[here]
        pieces.append(
            [
                len(wanted),
                -was.gather(1, wanted).sum().item(),
                -now.gather(1, wanted).sum().item(),
                (was.exp() * (was - now)).sum().item(),
                int((was.argmax(1) == now.argmax(1)).sum()),
            ]
        )
    return pieces


def _log_probs(decoder: Decoder, window: Window) -> Tensor:
    cache = decoder.new_cache(num_slots=1, max_length=len(window.ids))
    chunk = Chunk(cache.allocate(), window.ids[:-1], window.scored)
    return torch.log_softmax(decoder.forward([chunk], cache)[0], dim=1)


def _windows(
    model: str, decoder: Decoder, arguments: argparse.Namespace, settings: Settings
) -> list[Window]:
    folder = resolve(model, home=settings.home, dtype=REFERENCE).path
    assets = load_text_assets(folder)
    tokenizer = HFTokenizer(assets.tokenizer_json)
    topics = pydoc_data.topics.topics
    texts = {
        "English": "\n".join(topics[name] for name in sorted(topics)),
        "Python code": "\n".join(inspect.getsource(module) for module in CODE),
    }
    windows = []
    for text, content in texts.items():
        ids = tokenizer.encode(content, add_special_tokens=False)
        length = arguments.context
        apart = len(ids) // arguments.windows
        if apart < length:
            raise SystemExit(f"--windows {arguments.windows}: the {text} has {len(ids)} tokens")
        for index in range(arguments.windows):
            start = index * apart
            windows.append(Window(text, ids[start : start + length], length - 1))
    chat = ChatTemplate(assets.chat_template, assets.special_tokens)
    asked = [
        tokenizer.encode(chat.render(prompt.question().messages or ()), add_special_tokens=False)
        for prompt in read_prompts(arguments.prompts, arguments.limit)
    ]
    answers = _answers(decoder, asked, arguments.answer, assets.eos_token_ids)
    chats = zip(asked, answers, strict=True)
    return windows + [Window("chat answers", [*ids, *said], len(said)) for ids, said in chats]


def _answers(
    decoder: Decoder, asked: Sequence[list[int]], length: int, ends: frozenset[int]
) -> list[list[int]]:
    """The greedy answers, all of them side by side, each up to its end."""
    if not asked:
        return []
    cache = decoder.new_cache(num_slots=len(asked), max_length=max(map(len, asked)) + length)
    answers: list[list[int]] = [[] for _ in asked]
    fed = {cache.allocate(): ids for ids in asked}
    place = {slot: index for index, slot in enumerate(fed)}
    while fed:
        logits = decoder.forward([Chunk(slot, ids, 1) for slot, ids in fed.items()], cache)
        chosen = {slot: int(row[0].argmax()) for slot, row in zip(fed, logits, strict=True)}
        for slot, token in chosen.items():
            answers[place[slot]].append(token)
        fed = {
            slot: [token]
            for slot, token in chosen.items()
            if token not in ends and len(answers[place[slot]]) < length
        }
    return answers


def _load(model: str, arm: str, settings: Settings) -> Decoder:
    if arm in (REFERENCE, *ENGINE):
        folder = resolve(model, home=settings.home, dtype=arm)
        return load_decoder(folder.path, settings.engine, dtype=arm)
    of_layers, of_embedding, of_head = ROUNDINGS[arm]

    def linear(affine: Affine) -> Linear:
        return Linear(of_layers(floats(affine.weight, torch.float32)), affine.bias)

    folder = resolve(model, home=settings.home, dtype=REFERENCE)
    with open_tensors(folder.path, dtype=torch.float32, device=torch.device("cpu")) as tensors:
        embedding = tensors.embedding()
        head = Linear(of_head(floats(tensors.head(embedding), torch.float32)))
        return TorchDecoder(
            tensors.config,
            embedding=of_embedding(embedding),
            layers=[layer_over(layer, linear) for layer in tensors.layers()],
            norm=tensors.norm(),
            head=head,
        )


def _as_gguf(kind: GGMLQuantizationType) -> Rounding:
    return lambda weight: torch.from_numpy(dequantize(quantize(weight.numpy(), kind), kind))


def _as_int8(weight: Tensor) -> Tensor:
    codes, scale = round_int8(weight)
    return codes * scale.unsqueeze(1)


_Q8_0 = _as_gguf(GGMLQuantizationType.Q8_0)
ROUNDINGS: dict[str, tuple[Rounding, Rounding, Rounding]] = {  # of layers, embedding and head
    "int8 weights": (_as_int8, _as_int8, _as_int8),
    "Q8_0": (_Q8_0, _Q8_0, _Q8_0),
    "Q4_1": (_as_gguf(GGMLQuantizationType.Q4_1), _Q8_0, _Q8_0),
    "Q4_0": (_as_gguf(GGMLQuantizationType.Q4_0), _Q8_0, _Q8_0),
}


def _command() -> str:
    """What was typed, with absolute paths cut down to names."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return f"python scripts/quality.py {shlex.join(words)}"


def _report(rows: list[Row]) -> str:
    lines = [HEADER.rstrip()]
    for model in dict.fromkeys(row["model"] for row in rows):
        mine = [row for row in rows if row["model"] == model]
        lines += ["", f"## {model}"]
        for text in dict.fromkeys(text for row in mine for text in (*row["sums"], "all")):
            pieces = {row["arm"]: _pieces(row, text) for row in mine}
            positions, reference = next(iter(pieces.values())).sum(axis=0)[:2]
            lines += [
                "",
                f"{text.capitalize()}: {positions:.0f} positions; perplexity of the reference "
                f"{math.exp(reference / positions):.3f}.",
                "",
                "| | perplexity | to the reference (95%) | same argmax | divergence, nats |",
                "|---|---|---|---|---|",
                *(_line(arm, sums) for arm, sums in pieces.items()),
            ]
        lines += ["", *(f"Command: `{command}`" for command in {r["command"]: 0 for r in mine})]
    pythons = dict.fromkeys(row["python"] for row in rows)
    return "\n".join(
        [*lines, "", f"English and code are those of Python {', '.join(pythons)}.", ""]
    )


def _pieces(row: Row, text: str) -> np.ndarray:
    """[pieces, 5], of one text or all of them."""
    texts = row["sums"] if text == "all" else (text,)
    return np.array([piece for text in texts for piece in row["sums"][text]])


def _line(arm: str, pieces: np.ndarray) -> str:
    drawn = np.random.default_rng(0).integers(len(pieces), size=(RESAMPLES, len(pieces)))
    count, was, now, divergence, same = pieces.sum(axis=0)
    counts, wases, nows = pieces[drawn, :3].sum(axis=1).T
    low, high = np.exp(np.percentile((nows - wases) / counts, (2.5, 97.5)))
    return (
        f"| {arm} | {math.exp(now / count):.3f} | {math.exp((now - was) / count):.4f}"
        f" ({low:.4f} to {high:.4f}) | {same / count:.2%} | {divergence / count:.5f} |"
    )


if __name__ == "__main__":
    main()
