"""`outrider run` and `outrider generate` as users start them: real processes, the real model."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest

from outrider.models import ModelFolder

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("smollm2")]

MODEL = "smollm2-135m-q4_1"
OUTRIDER = [sys.executable, "-m", "outrider"]


@dataclass
class Server:
    process: subprocess.Popen[str]
    address: str
    welcome: str

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.address + path, timeout=30)

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.address}/v1",
            api_key="none",
            max_retries=0,
            _strict_response_validation=True,
        )

    def held(self) -> float:
        """Sessions that the target holds, as the metrics tell."""
        found = re.search(r"^outrider_slots_used (\S+)$", self.get("/metrics").text, re.M)
        assert found
        return float(found[1])

    def stop(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        with self.process:  # closes the pipe too
            return self.process.wait(timeout=30)


def start(*arguments: str) -> Server:
    process = subprocess.Popen(
        [*OUTRIDER, "run", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    lines = []
    while not (lines and "print(client" in lines[-1]):
        line = process.stdout.readline()
        assert line, f"the server ended with {process.wait()} after {lines}"
        lines.append(line)
    found = re.search(r"http://[\d.]+:\d+", lines[0])
    assert found
    return Server(process, found[0], "".join(lines))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = start("--draft", "ngram", "--draft", "layers:10")
    yield server
    if server.process.poll() is None:
        server.stop()


def ask(server: Server, text: str, **options) -> dict:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "temperature": 0}
    response = httpx.post(f"{server.address}/v1/chat/completions", json=body | options, timeout=120)
    assert response.status_code == 200, response.text
    return response.json()


def test_it_says_how_to_talk_to_it_and_what_it_says_works(server: Server) -> None:
    command = server.welcome[server.welcome.index("curl ") : server.welcome.index("  from openai")]
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["choices"][0]["message"]["content"]
    code = server.welcome[server.welcome.index("  from openai") :]
    script = "\n".join(line.strip() for line in code.splitlines())
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert said.stdout.strip()


def test_the_openai_sdk_streams_what_it_gets_whole(server: Server) -> None:
    messages = [{"role": "user", "content": "Count from one to ten in words."}]
    options = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 24}
    whole = server.client.chat.completions.create(**options)
    stream = server.client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    first, second = whole.usage, chunks[-1].usage
    assert (second.prompt_tokens, second.completion_tokens) == (
        first.prompt_tokens,
        first.completion_tokens,
    )
    # The same prompt again: all of it but its last token was known.
    assert second.prompt_tokens_details.cached_tokens == second.prompt_tokens - 1


@pytest.mark.parametrize("drafter", ["ngram", "layers:10"])
def test_speculation_on_and_off_give_the_same_greedy_tokens(server: Server, drafter: str) -> None:
    text = "Repeat twice: the quick brown fox jumps over the lazy dog."
    options = {"max_tokens": 48, "return_token_ids": True}
    plain = ask(server, text, speculation={"enabled": False}, **options)
    fast = ask(server, text, speculation={"drafter": drafter}, **options)
    assert fast["choices"][0]["token_ids"] == plain["choices"][0]["token_ids"]
    assert fast["speculation"]["drafted_tokens"] > 0
    assert plain["speculation"]["drafted_tokens"] == 0
    assert fast["speculation"]["exact"] == "identical"


def test_a_seed_fixes_the_output_whatever_drafts(server: Server) -> None:
    options = {"temperature": 0.8, "seed": 11, "max_tokens": 24}
    found = {
        ask(server, "Tell me a story.", **options, speculation=speculation)["choices"][0][
            "message"
        ]["content"]
        for speculation in (
            {"enabled": False},
            {"drafter": "ngram"},
            {"drafter": "layers:10", "max_lookahead": 2},
        )
    }
    assert len(found) == 1


def test_32_streams_a_third_of_them_cut_leave_every_slot_free(server: Server) -> None:
    draw = random.Random(1)

    def stream(index: int) -> None:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": f"Say {index}."}],
            "max_tokens": 12,
            "stream": True,
            "speculation": {"drafter": ("ngram", "layers:10")[index % 2]},
        }
        cut_after = draw.randrange(4) if index % 3 == 0 else None
        url = f"{server.address}/v1/chat/completions"
        with httpx.stream("POST", url, json=body, timeout=120) as response:
            assert response.status_code == 200
            lines = []
            for line in response.iter_lines():
                lines.append(line)
                if cut_after is not None and len(lines) > cut_after:
                    return
        assert lines[-2] == "data: [DONE]"

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(stream, range(32)))
    deadline = time.monotonic() + 5
    while server.held() > 0:
        assert time.monotonic() < deadline, "sessions are still held"
        time.sleep(0.02)


def test_a_client_that_hangs_up_frees_its_slot_within_a_step(server: Server) -> None:
    body = json.dumps(
        {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True}
    ).encode()
    host, port = server.address.removeprefix("http://").split(":")
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        while server.held() == 0:
            time.sleep(0.02)
    deadline = time.monotonic() + 2
    while server.held() > 0:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_its_metrics_tell_of_drafts(server: Server) -> None:
    ask(server, "Say la la la la la la la la la la la la.", max_tokens=32)
    text = server.get("/metrics").text
    found = re.search(r'^spec_decode_num_drafts_total\{drafter="ngram"\} (\S+)$', text, re.M)
    assert found
    assert float(found[1]) > 0


def test_a_port_in_use_is_said_in_one_line_before_anything_is_loaded(server: Server) -> None:
    port = server.address.rpartition(":")[2]
    started = time.monotonic()
    done = subprocess.run(
        [*OUTRIDER, "run", "--port", port], capture_output=True, text=True, check=False
    )
    assert time.monotonic() - started < 5
    assert done.returncode == 1
    assert f"port {port}" in done.stderr
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_ends_it_cleanly_and_running_streams_finish(server: Server) -> None:
    """The last test of this module: it stops the server."""
    lines: list[str] = []
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 40, "stream": True, "ignore_eos": True}

    def read() -> None:
        url = f"{server.address}/v1/completions"
        with httpx.stream("POST", url, json=body, timeout=60) as response:
            lines.extend(response.iter_lines())

    reader = threading.Thread(target=read)
    reader.start()
    while server.held() == 0:
        time.sleep(0.02)
    assert server.stop(signal.SIGINT) == 0
    reader.join(timeout=30)
    assert "data: [DONE]" in lines


def test_generate_compares_speculative_with_plain_output() -> None:
    done = subprocess.run(
        [
            *OUTRIDER,
            "generate",
            "Repeat after me: the quick brown fox jumps over the lazy dog.",
            "--compare",
            "--max-tokens",
            "32",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.strip()
    assert "outputs: identical" in done.stderr
    assert re.search(r"speed-up: \d+\.\d\dx", done.stderr)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--target", "smollm3"], "smollm3"),
        (["--target", "./nowhere"], "nowhere"),
        (["--draft", "layers:99"], "1 to 30 layers"),
        (["--dtype", "int3"], "int3"),
        (["--device", "toaster"], "toaster"),
        (["--max-context", "100000"], "100000"),
        (["--draft", "ngram", "--draft", "ngram"], "two drafters named ngram"),
    ],
)
def test_a_bad_start_is_one_line_with_the_value(arguments: list[str], complaint: str) -> None:
    done = subprocess.run(
        [*OUTRIDER, "run", "--port", "0", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert complaint in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Outrider serves" not in done.stdout


def test_a_truncated_gguf_is_refused_by_name(smollm2: ModelFolder, tmp_path: Path) -> None:
    home = Path(os.environ.get("OUTRIDER_HOME", Path.home() / ".cache" / "outrider"))
    (whole,) = (home / "fetched" / MODEL).glob("*.gguf")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole.read_bytes()[:5_000_000])
    done = subprocess.run(
        [*OUTRIDER, "generate", "Hi", "--target", str(cut)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OUTRIDER_HOME": str(tmp_path / "home")},
    )
    assert done.returncode == 1
    assert "cut.gguf" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_draft_that_shares_too_few_tokens_is_refused_with_the_numbers(
    smollm2: ModelFolder, tmp_path: Path
) -> None:
    """The default model again, as draft, with a tokenizer that knows single characters alone."""
    folder = tmp_path / "other"
    folder.mkdir()
    for file in smollm2.path.iterdir():
        (folder / file.name).symlink_to(file)
    tokenizer = json.loads((smollm2.path / "tokenizer.json").read_text())
    model = tokenizer["model"]
    model["vocab"] = {token: i for token, i in model["vocab"].items() if len(token) == 1}
    model["merges"] = []
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    done = subprocess.run(
        [*OUTRIDER, "run", "--port", "0", "--draft", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert "of the target's 49152" in done.stderr
    assert "70%" in done.stderr
