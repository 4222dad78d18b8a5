"""The transformers library's `generate`: plain, assisted by a draft model, or with prompt lookup.

    python -m workers.huggingface --model FOLDER [--draft FOLDER] --dtype bfloat16 --threads N

Fields of a request are arguments of `generate`; `"assisted": true` among them adds the draft model.
"""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from .wire import Emit, Generate, serve

__all__ = ["main"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft")
    parser.add_argument("--dtype", required=True, choices=["bfloat16", "float32"])
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    serve(lambda: _load(arguments))


def _load(arguments: argparse.Namespace) -> Generate:
    # Not by `import`: the worker's environment has versions of its own.
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    torch.set_num_threads(arguments.threads)
    dtype = getattr(torch, arguments.dtype)

    def read(folder: str) -> Any:
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()

    model = read(arguments.model)
    draft = read(arguments.draft) if arguments.draft else None

    class Streamer:
        """Is given the prompt first, then tokens as they are accepted."""

        def __init__(self, emit: Emit) -> None:
            self._emit = emit
            self._prompt_seen = False

        def put(self, value: Any) -> None:
            if self._prompt_seen:
                self._emit(value.flatten().tolist())
            self._prompt_seen = True

        def end(self) -> None:
            pass

    def generate(
        prompt_ids: list[int], max_tokens: int, request: dict[str, Any], emit: Emit
    ) -> None:
        options = dict(request)
        if options.pop("assisted", False):
            if draft is None:
                raise ValueError("assisted generation needs --draft")
            options["assistant_model"] = draft
        ids = torch.tensor([prompt_ids])
        with torch.inference_mode():
            model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_tokens,
                do_sample=False,
                streamer=Streamer(emit),
                **options,
            )

    return generate


if __name__ == "__main__":
    main()
