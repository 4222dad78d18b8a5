"""What does it cost to judge a draft, beside the forward pass that computed its rows?

Judges the same drafts of k tokens over a large vocabulary with Outrider's rules, with
transformers' own speculative sampling, and with the textbook's loop written straight down in torch.
The unit is one plain pass over a row (its maximum). Everything is measured in turn, round after
round, so that whatever else the machine does hits all alike.

    python scripts/verification_cost.py --report FILE.md
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers.generation.logits_process import TopPLogitsWarper
from transformers.generation.utils import _speculative_sampling

from outrider.drafters import SessionView
from outrider.drafters.picker import Picker, Sampling
from outrider.sampling import History, TokenSampler, uniforms
from outrider.types import Draft, SampledDraft, SamplingParams
from outrider.verify import match, verify_block, verify_tokens

V = 128_256
K = 5
NOISE = 1.0
"""Standard deviation of the draft's logits about the target's."""

Rows = np.ndarray


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--report", type=Path, required=True)
    arguments = parser.parse_args()
    lines = [
        "# Cost of judging a draft",
        "",
        f"Vocabulary {V:,}, drafts of {K} tokens, float32 logits, {torch.get_num_threads()} torch",
        "threads (Outrider's rules use one). Synthetic rows, a few likely tokens above a Gaussian",
        f"floor; the draft's logits are the target's with noise of standard deviation {NOISE}.",
        f"Medians of {arguments.rounds} interleaved rounds. A pass is the maximum of one row; a",
        f"draft has {K + 1} rows. Drafting is not part of it.",
    ]
    for title, params in {
        "Full support (temperature 1)": SamplingParams(),
        "top-p 0.9": SamplingParams(top_p=0.9),
    }.items():
        for batch in (1, 32):
            lines += ["", f"## {title}, {batch} at a time", ""]
            lines += _table(_measure(params, batch, arguments.rounds), batch)
    text = "\n".join([*lines, "", f"Command: `python {shlex.join(sys.argv)}`", ""])
    arguments.report.write_text(text)
    print(text)


def _table(times: dict[str, list[float]], batch: int) -> list[str]:
    unit = statistics.median(times.pop("pass")) / batch
    lines = [
        "| | ms per draft | passes per row | accepted |",
        "|---|---|---|---|",
    ]
    accepted = {name: statistics.mean(times.pop(f"{name} accepted")) for name in list(_RULES)}
    for name in _RULES:
        median = statistics.median(times[name]) / batch
        passes = median / unit / (K + 1)
        lines.append(f"| {name} | {median * 1000:.2f} | {passes:.1f} | {accepted[name]:.2f} |")
    return lines


class _Case:
    """One draft with its rows, in the form that each rule takes."""

    def __init__(self, seed: int, params: SamplingParams) -> None:
        rng = np.random.default_rng(seed)
        self.params = params
        self.rows = _rows(rng, K + 1)
        self.draft_rows = self.rows[:K] + NOISE * rng.standard_normal((K, V)).astype(np.float32)
        self.sampler = TokenSampler(params, seed)
        view = SessionView("s", [0], 1, 1, params, noise_key=seed)
        self.coupled = self._drafted(Picker(Sampling(view, frozenset())))
        self.drawn = self._drafted(Picker(Sampling(view, frozenset()), rng))
        self.torch_rows = torch.from_numpy(self.rows)[None]
        self.torch_draft_rows = torch.from_numpy(self.draft_rows)[None]
        draft_probs = self.warped(self.torch_draft_rows).softmax(-1)[0]
        self.ids = torch.multinomial(draft_probs, 1).T

    def _drafted(self, picker: Picker) -> Draft | SampledDraft:
        history = History((0,))
        for row in self.draft_rows:
            picker.pick(row, history)
        return picker.draft("draft")

    def warped(self, logits: torch.Tensor) -> torch.Tensor:
        """As transformers applies top-p before it verifies."""
        if self.params.top_p == 1.0:
            return logits
        warper = TopPLogitsWarper(self.params.top_p)
        return torch.stack([warper(None, rows) for rows in logits])


def _rows(rng: np.random.Generator, count: int) -> Rows:
    rows = (2.5 * rng.standard_normal((count, V))).astype(np.float32)
    for row in rows:
        likely = rng.integers(V, size=60)
        row[likely] += rng.exponential(4.0, size=60).astype(np.float32) + 6.0
    return rows


def _matching(case: _Case, _: int) -> int:
    history = History((0,))

    def sample(index: int) -> int:
        history.extend(case.coupled.token_ids[history.output_length : index])
        return case.sampler.sample(case.rows[index], history)

    return match(case.coupled.token_ids, sample)[0]


def _ratio(rule: Callable[..., tuple[int, int]]) -> Callable[[_Case, int], int]:
    def judge(case: _Case, turn: int) -> int:
        history = History((0,))
        fresh = uniforms(1, 0, turn, np.arange(K + 1))
        support = lambda index: case.sampler.support(case.rows[index], history)  # noqa: E731 # a row
        return rule(case.drawn, support, fresh)[0]

    return judge


def _transformers(case: _Case, _: int) -> int:
    accepted = _speculative_sampling(
        case.ids, case.warped(case.torch_draft_rows), K, case.warped(case.torch_rows)
    )[1]
    return int(accepted)


def _textbook(case: _Case, _: int) -> int:
    """Algorithm 1 of arXiv 2211.17192, as it reads."""
    target_probs = case.warped(case.torch_rows)[0].softmax(-1)
    draft_probs = case.warped(case.torch_draft_rows)[0].softmax(-1)
    for index, token in enumerate(case.ids[0].tolist()):
        ratio = target_probs[index, token] / draft_probs[index, token]
        if torch.rand(()) > ratio:
            residual = (target_probs[index] - draft_probs[index]).clamp(min=0)
            torch.multinomial(residual / residual.sum(), 1).item()
            return index
    torch.multinomial(target_probs[K], 1).item()
    return K


_RULES: dict[str, Callable[[_Case, int], int]] = {
    "matching (coupled draft)": _matching,
    "token ratios (sparse draft)": _ratio(verify_tokens),
    "block ratios (sparse draft)": _ratio(verify_block),
    "transformers": _transformers,
    "textbook loop in torch": _textbook,
}


def _measure(params: SamplingParams, batch: int, rounds: int) -> dict[str, list[float]]:
    cases = [_Case(seed, params) for seed in range(batch)]
    times: dict[str, list[float]] = {"pass": []}
    for turn in range(rounds + 1):
        started = time.perf_counter()
        for case in cases:
            case.rows[turn % (K + 1)].max()
        _note(times, "pass", turn, time.perf_counter() - started)
        for name, judge in _RULES.items():
            started = time.perf_counter()
            accepted = [judge(case, turn) for case in cases]
            _note(times, name, turn, time.perf_counter() - started)
            _note(times, f"{name} accepted", turn, statistics.mean(accepted))
    return times


def _note(times: dict[str, list[float]], name: str, turn: int, value: float) -> None:
    if turn:  # the first round pays for memory that later ones find in place
        times.setdefault(name, []).append(value)


if __name__ == "__main__":
    main()
