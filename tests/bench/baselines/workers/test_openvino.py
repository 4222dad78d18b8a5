"""The worker for OpenVINO GenAI, over stand-ins for its libraries."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import outrider.bench.baselines
from outrider.bench.baselines.processes import PeerProcess
from outrider.bench.baselines.worker_link import WorkerLink

Start = Callable[..., PeerProcess]
WORKERS = Path(outrider.bench.baselines.__file__).parent

GENAI = """
from pathlib import Path
class StreamingStatus: RUNNING = 0
class StreamerBase: pass
class SchedulerConfig: pass
class TokenizedInputs:
    def __init__(self, ids, mask): self.ids = ids
class Config: pass
def draft_model(path, device, **properties):
    assert Path(path, "openvino_model.xml").exists()
    return ("draft", path, device, properties)
class LLMPipeline:
    def __init__(self, path, device, enable_save_ov_model=False, **options):
        assert device == "CPU" and options["INFERENCE_NUM_THREADS"] == 2
        if enable_save_ov_model:
            Path(path).with_name("openvino_model.xml").touch(exist_ok=False)
        self.options = options
    def get_generation_config(self): return Config()
    def generate(self, inputs, config, streamer):
        assert config.do_sample is False
        assert (config.eos_token_id, config.stop_token_ids) == (7, {7, 9})
        said = inputs.ids.data[0].tolist()[::-1][:config.max_new_tokens]
        streamer.write(said[0])
        streamer.write(said[1:] + [config.num_assistant_tokens])
        speculates = ("prompt_lookup", "draft_model", "scheduler_config")
        streamer.write([int(name in self.options) for name in speculates])
        streamer.end()
"""
OPENVINO = """
class Tensor:
    def __init__(self, data): self.data = data
"""


def ask(start: Start, folder: Path, *arguments: str) -> tuple[int, ...]:
    (folder / "openvino_genai.py").write_text(GENAI)
    (folder / "openvino.py").write_text(OPENVINO)
    command = ["-m", "workers.openvino", "--model", "m.gguf", "--threads", "2"]
    command += ["--stop", "7,9", "--cache", str(folder / "cache"), *arguments]
    path = f"{WORKERS}:{folder}"
    process = start(
        *(sys.executable, *command),
        speaks=True,
        environment={"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    link = WorkerLink(process, timeout_s=20.0)
    link.wait_until_ready(20.0)
    answer = link.ask((1, 2, 3, 4), 3, {"num_assistant_tokens": 5})
    assert [chunk.tokens for chunk in answer.chunks] == [1, 3, 3]
    assert answer.token_ids is not None
    return answer.token_ids


def test_single_tokens_and_lists_arrive_under_the_options_of_the_request(
    start: Start, tmp_path: Path
) -> None:
    assert ask(start, tmp_path) == (4, 3, 2, 5, 0, 0, 0)


def test_speculation_brings_the_scheduler_that_it_needs(start: Start, tmp_path: Path) -> None:
    assert ask(start, tmp_path, "--prompt-lookup")[-3:] == (1, 0, 1)


def test_a_draft_model_is_brought_into_the_library_s_own_form_once(
    start: Start, tmp_path: Path
) -> None:
    for _ in range(2):
        assert ask(start, tmp_path, "--draft", "d.gguf")[-3:] == (0, 1, 1)
    assert (tmp_path / "cache" / "d" / "openvino_model.xml").exists()
