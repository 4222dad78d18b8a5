"""OpenVINO GenAI's `LLMPipeline`, which opens GGUF files and folders of its own form.

    python -m workers.openvino --model PATH [--draft PATH] [--prompt-lookup]
        --stop ID,ID --threads N --cache FOLDER

Fields of a request are set on the pipeline's `GenerationConfig`. From a GGUF file the library does
not take the tokens that end an output, so they are given.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .wire import Emit, Generate, serve

__all__ = ["main"]

_CACHE_GB = 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft")
    parser.add_argument("--prompt-lookup", action="store_true")
    parser.add_argument("--stop", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    arguments = parser.parse_args()
    serve(lambda: _load(arguments))


def _load(arguments: argparse.Namespace) -> Generate:
    # Not by `import`: these modules exist in the worker's environment alone.
    genai: Any = importlib.import_module("openvino_genai")
    openvino: Any = importlib.import_module("openvino")
    numpy: Any = importlib.import_module("numpy")
    properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": arguments.threads}
    options = dict(properties)
    if arguments.draft:
        draft = _own_form(genai, Path(arguments.draft), arguments.cache, properties)
        options["draft_model"] = genai.draft_model(str(draft), "CPU", **properties)
    if arguments.prompt_lookup:
        options["prompt_lookup"] = True
    if arguments.draft or arguments.prompt_lookup:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = _CACHE_GB
        scheduler.enable_prefix_caching = False
        options["scheduler_config"] = scheduler
    pipeline = genai.LLMPipeline(arguments.model, "CPU", **options)
    stop = [int(token) for token in arguments.stop.split(",")]

    class Streamer(genai.StreamerBase):  # type: ignore[misc] # known at run time only
        def __init__(self, emit: Emit) -> None:
            super().__init__()
            self._emit = emit

        def write(self, token: int | Sequence[int]) -> Any:
            self._emit([token] if isinstance(token, int) else token)
            return genai.StreamingStatus.RUNNING

        def end(self) -> None:
            pass

    def generate(
        prompt_ids: list[int], max_tokens: int, request: dict[str, Any], emit: Emit
    ) -> None:
        config = pipeline.get_generation_config()
        config.max_new_tokens = max_tokens
        config.do_sample = False
        config.eos_token_id = stop[0]
        config.stop_token_ids = set(stop)
        for name, value in request.items():
            setattr(config, name, value)
        ids = openvino.Tensor(numpy.array([prompt_ids], dtype=numpy.int64))
        mask = openvino.Tensor(numpy.ones((1, len(prompt_ids)), dtype=numpy.int64))
        pipeline.generate(genai.TokenizedInputs(ids, mask), config, Streamer(emit))

    return generate


def _own_form(genai: Any, model: Path, cache: Path, properties: dict[str, Any]) -> Path:
    """A folder in the library's own form: as a draft model it opens nothing else.

    A GGUF file is converted once, by the library itself.
    """
    if model.suffix != ".gguf":
        return model
    folder = cache / model.stem
    if not (folder / "openvino_model.xml").exists():
        folder.mkdir(parents=True, exist_ok=True)
        link = folder / model.name
        link.unlink(missing_ok=True)
        link.symlink_to(model.resolve())
        genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True, **properties)
    return folder


if __name__ == "__main__":
    main()
