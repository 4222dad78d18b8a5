"""`outrider bench` in process: against servers in another thread, and over tables."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

import pytest

from outrider.cli import main
from tests.audit.servers import gateway, in_thread
from tests.bench.scripted import ScriptedClock, ScriptedServer


class StreamingServer(ScriptedServer):
    """Streams without waiting for a reader of its clock."""

    async def _send(self, response, choice, total) -> None:
        chunk = {"choices": [choice], "usage": {"completion_tokens": total}}
        await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")


@pytest.fixture
def outrider(monkeypatch, capsys):
    """Runs `outrider bench`; gives exit code, standard output and standard error."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def command(*arguments: object):
        monkeypatch.setattr(sys, "argv", ["outrider", "bench", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return int(end.value.code or 0), said.out, said.err

    return command


@pytest.fixture
def texts(tmp_path):
    file = tmp_path / "texts.jsonl"
    rows = [{"prompt": f"0 1 {number % 5}", "category": "ab"[number % 2]} for number in range(6)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def chats(tmp_path):
    file = tmp_path / "chats.jsonl"
    file.write_text('{"turns": ["a", "b"]}\n' * 3)
    return file


def streaming(**fields) -> StreamingServer:
    return StreamingServer(ScriptedClock(), [[(0.0, "a", 1), (0.0, "bc", 2)]], **fields)


def test_two_ways_in_this_process_are_compared_and_written(
    outrider, write_table, texts, tmp_path
) -> None:
    target, draft = write_table("target", seed=1), write_table("draft", seed=1)
    file = tmp_path / "result.json"
    code, out, err = outrider(
        *(texts, "--target", f"table:{target}", "--draft", f"table:{draft}", "--max-tokens", 12),
        *("--baseline", "plain", "--by", "category", "--json", file),
    )
    assert (code, err) == (0, "")
    assert "A: target in this process" in out
    assert "B: the same, but plain" in out
    assert "6 of 6 prompts with the same text" in out
    written = json.loads(file.read_text())
    one, other = written["configurations"]
    assert one["acceptance"]["drafted"] > other["acceptance"]["drafted"] == 0
    assert one["total_output_tokens"] == other["total_output_tokens"] == 6 * 12
    assert [group["name"] for group in written["comparison"]] == ["a", "b", "all"]


def test_flags_of_a_pipeline_may_differ(outrider, write_table, texts) -> None:
    target, draft = write_table("target", seed=1), write_table("draft", seed=1)
    code, out, _ = outrider(
        *(texts, "--target", f"table:{target}", "--draft", f"table:{draft}", "--max-tokens", 8),
        *("--baseline", "draft=none", "--baseline", "max-context=64", "--limit", 2),
    )
    assert code == 0
    assert "B: the same, but draft=none, max-context=64" in out


def test_our_own_gateway_tells_tokens_and_drafts(outrider, write_table, texts, tmp_path) -> None:
    target, draft = write_table("target", seed=1), write_table("draft", seed=1)
    file = tmp_path / "result.json"
    with in_thread(gateway(target, f"table:{draft}")) as served:
        code, _, err = outrider(
            *(texts, "--url", served.url, "--concurrency", 3, "--max-tokens", 12, "--ignore-eos"),
            *("--baseline", "plain", "--json", file, "--param", "speculation.max_lookahead=2"),
        )
    assert (code, err) == (0, "")
    one, other = json.loads(file.read_text())["configurations"]
    assert one["counting"] == ["the usage in every chunk"]
    assert one["total_output_tokens"] == 6 * 12
    assert one["acceptance"]["drafted"] > 0
    assert other["acceptance"]["drafted"] == 0


def test_turns_and_two_servers(outrider, chats) -> None:
    with in_thread(streaming().running()) as one, in_thread(streaming().running()) as other:
        code, out, err = outrider(chats, "--url", one.url, "--baseline", other.url)
        assert (code, err) == (0, "")
        assert "TTFT, turn 2" in out
        assert f"B: the same, but {other.url}" in out
        assert len(one.asked) == len(other.asked) == 1 + 6
        assert [message["content"] for message in one.asked[2]["messages"]] == ["a", "abc", "b"]


def test_failed_requests_are_counted_and_named(outrider, chats) -> None:
    with in_thread(streaming(fail=[200, 500]).running()) as server:
        code, out, _ = outrider(chats, "--url", server.url)
    assert code == 0
    assert "1 failed: TargetFailed: " in out
    assert "answered 500 (not now)" in out


def test_nobody_answering_is_exit_code_1(outrider, chats) -> None:
    with in_thread(streaming(fail=[200, *[503] * 9]).running()) as server:
        code, out, _ = outrider(chats, "--url", server.url)
    assert code == 1
    assert "3 failed" in out


def test_ctrl_c_reports_what_was_measured(outrider, chats, tmp_path) -> None:
    class Interrupting(StreamingServer):
        async def complete(self, request):
            if len(self.asked) == 4:
                os.kill(os.getpid(), signal.SIGINT)
            return await super().complete(request)

    file = tmp_path / "result.json"
    server = Interrupting(ScriptedClock(), [[(0.0, "a", 1), (0.0, "b", 1)]])
    with in_thread(server.running()):
        code, out, _ = outrider(chats, "--url", server.url, "--json", file)
    assert code == 130
    assert "Interrupted: this is what was measured until then." in out
    assert json.loads(file.read_text())["configurations"][0]["completed"] in (3, 4)


def test_nobody_there_is_one_line_and_exit_code_1(outrider, chats) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        code, out, err = outrider(chats, "--url", url)
    assert (code, out) == (1, "")
    assert url in err
    assert len(err.strip().splitlines()) == 1


def test_help_teaches_with_examples(outrider) -> None:
    code, out, _ = outrider("--help")
    assert code == 0
    assert "outrider bench prompts.jsonl --draft ngram --baseline plain" in out
    assert "Speculation" in out


URL = ("--url", "http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*URL, "--draft", "ngram"), "--draft is for a pipeline in this process"),
        (("--model", "m"), "--model m is a server's"),
        ((*URL, "--baseline", "draft=none"), "is set when a pipeline is built"),
        (("--baseline", "model=x"), "write target=x instead"),
        (("--baseline", "threads=1"), "threads=1 cannot be had beside another number"),
        (("--baseline", "fast"), "'fast' is not NAME=VALUE"),
        (("--param", "n=2"), "n is the measurement's own"),
        (("--baseline", "max_tokens=many"), "max_tokens is 'many'"),
        (("--param", "a=1", "--baseline", "a.b=2"), "a.b cannot be set: a is 1 already"),
        (("--json", "nowhere/r.json"), "cannot write nowhere/r.json"),
    ],
)
def test_what_does_not_go_together_is_one_line_before_anything_is_asked(
    outrider, chats, arguments, said
) -> None:
    code, out, err = outrider(chats, *arguments)
    assert (code, out) == (1, "")
    assert said in " ".join(err.split())
    assert len(err.strip().splitlines()) == 1
