"""The worker for transformers, with a tiny model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import outrider.bench.baselines
from outrider.bench.baselines.processes import PeerProcess
from outrider.bench.baselines.worker_link import WorkerLink

WORKERS = Path(outrider.bench.baselines.__file__).parent
PROMPT = (5, 6, 7, 5, 6, 7, 5, 6)


def test_plain_looked_up_and_assisted_output_is_what_generate_says(
    start: Callable[..., PeerProcess], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    ids = torch.tensor([PROMPT])
    said = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False
    )
    expected = tuple(said[0, len(PROMPT) :].tolist())
    folder = str(tmp_path)
    process = start(
        *(sys.executable, "-m", "workers.huggingface", "--model", folder, "--draft", folder),
        *("--dtype", "float32", "--threads", "1"),
        speaks=True,
        environment={"PYTHONPATH": str(WORKERS), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    link = WorkerLink(process, timeout_s=60.0)
    link.wait_until_ready(120.0)
    for request in ({}, {"prompt_lookup_num_tokens": 3}, {"assisted": True}):
        assert link.ask(PROMPT, 12, request).token_ids == expected
