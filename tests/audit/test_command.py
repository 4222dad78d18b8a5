"""`outrider audit` in process, against servers in another thread."""

from __future__ import annotations

import json
import socket
import sys

import pytest

from outrider.cli import main

from .servers import SmallServer, gateway, in_thread

SMALL = ("--samples", 160, "--tokens", 1, "--generate", 2, "--greedy-tokens", 8, "--copies", 32)


@pytest.fixture
def outrider(monkeypatch, capsys, fixed_noise):
    """Runs `outrider audit`; gives exit code, standard output and standard error."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    fixed = ("--concurrency", "1", "--seed", "1")

    def command(*arguments: object):
        monkeypatch.setattr(sys, "argv", ["outrider", "audit", *fixed, *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return int(end.value.code or 0), said.out, said.err

    return command


def test_the_real_gateway_passes_and_everything_is_written(outrider, write_table, tmp_path) -> None:
    target, draft = write_table("target", seed=1), write_table("draft", seed=1, scale=1.2)
    prompts, file = tmp_path / "p.jsonl", tmp_path / "report.json"
    prompts.write_text('{"prompt": "0 1 2"}\n{"token_ids": [3]}\n')
    with in_thread(gateway(target, f"table:{draft}")) as served:
        code, out, err = outrider(
            *(served.url, "--prompts", prompts, "--samples", 120, "--tokens", 2, "--generate", 3),
            *("--json", file, "--greedy-tokens", 8, "--copies", 20, "--top-k", 4),
            *("--drafter", "table:draft", "--max-lookahead", 2),
        )
    assert code == 0, out + err
    assert "no difference found" in out
    assert err == ""
    assert json.loads(file.read_text())["model"] == "target"


def test_a_liar_is_exit_code_1(outrider, tmp_path) -> None:
    with in_thread(SmallServer(lie=0.4).running()) as server:
        code, out, _ = outrider(server.url, *SMALL)
    assert code == 1
    assert "DIFFERS" in out


def test_a_report_that_could_not_be_written_is_told_before_anything_is_asked(
    outrider, tmp_path
) -> None:
    with in_thread(SmallServer().running()) as server:
        for file in (tmp_path / "nowhere" / "r.json", tmp_path):
            code, out, err = outrider(server.url, *SMALL, "--json", file)
            assert (code, out) == (1, "")
            assert f"cannot write {file}" in err
            assert len(err.strip().splitlines()) == 1
    assert not server.asked


def test_a_report_that_cannot_be_written_after_all_is_printed_all_the_same(
    outrider, tmp_path
) -> None:
    folder = tmp_path / "soon_gone"
    folder.mkdir()

    class Removing(SmallServer):
        async def complete(self, request):
            if folder.exists():
                folder.rmdir()
            return await super().complete(request)

    with in_thread(Removing().running()) as server:
        code, out, err = outrider(server.url, *SMALL, "--json", folder / "r.json")
    assert code == 1
    assert "no difference found" in out
    assert "r.json: No such file or directory; the report is above" in err


def test_nothing_drafted_is_exit_code_3(outrider) -> None:
    with in_thread(SmallServer(drafts=0).running()) as server:
        code, out, _ = outrider(server.url, *SMALL)
    assert code == 3
    assert "inconclusive: nothing was drafted" in out


def test_a_key_may_come_from_the_environment(outrider, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "from-env")
    with in_thread(SmallServer().running()) as server:
        outrider(server.url, "--samples", 8, "--param", "presence_penalty=0.5")
    assert server.keys == {"Bearer from-env"}
    assert server.asked[0]["presence_penalty"] == 0.5


def test_nobody_there_is_one_line_and_exit_code_1(outrider) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        code, out, err = outrider(url)
    assert (code, out) == (1, "")
    assert url in err
    assert len(err.strip().splitlines()) == 1


def test_a_text_prompt_that_the_model_cannot_read_is_named(outrider, write_table) -> None:
    with in_thread(gateway(write_table("target"))) as served:
        code, _, err = outrider(served.url)
    assert code == 1
    assert "'story'" in err
    assert "--prompts" in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("param", ["presence_penalty", "presence_penalty=high", "=1"])
def test_a_parameter_that_is_not_json_is_misuse(outrider, param) -> None:
    code, _, err = outrider("http://127.0.0.1:1", "--param", param)
    assert code == 2
    assert param in err
