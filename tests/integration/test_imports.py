"""What a gateway-only install may load, checked in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

HEAVY = ("torch", "transformers", "safetensors", "gguf", "grpc")


def run_fresh(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_gateway_over_a_target_without_engine_serves_and_never_loads_torch(write_table) -> None:
    target, draft = write_table("target", seed=1), write_table("draft", seed=2)
    said = run_fresh(f"""
        import asyncio, sys
        import httpx
        from outrider.config import load_settings
        from outrider.gateway import create_app
        from outrider.pipeline import create_pipeline

        async def main():
            settings = load_settings(None, {{
                "engine": {{"target": "table:{target}"}},
                "speculation": {{"drafts": "ngram,table:{draft}"}},
            }})
            pipeline = await create_pipeline(settings)
            app = create_app(pipeline, settings)
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
                body = {{"model": "target", "prompt": [0, 1], "max_tokens": 8}}
                response = await client.post("/v1/completions", json=body)
            assert response.status_code == 200, response.text
            assert response.json()["usage"]["completion_tokens"] == 8
            await pipeline.close()

        asyncio.run(main())
        print(sorted(set({HEAVY!r}) & set(sys.modules)))
    """)
    assert said.splitlines()[-1] == "[]"


SERVER = """
import asyncio, sys
from outrider.config import load_settings
from outrider.servers.target import serve_target

settings = load_settings(None, {
    "engine": {"target": "table:" + sys.argv[1]},
    "target_server": {"port": 0, "status_port": 0},
})
asyncio.run(serve_target(settings, on_ready=lambda address, _: print(address, flush=True)))
"""


def test_a_gateway_over_target_servers_serves_and_never_loads_torch(write_table) -> None:
    command = [sys.executable, "-c", SERVER, str(write_table("target", seed=1))]
    servers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        addresses = [server.stdout.readline().strip() for server in servers]
        for spec in (addresses[0], ",".join(addresses)):
            said = run_fresh(f"""
                import asyncio, sys
                import httpx
                from outrider.config import load_settings
                from outrider.gateway import create_app
                from outrider.pipeline import create_pipeline

                async def main():
                    settings = load_settings(None, {{
                        "engine": {{"target": "{spec}"}},
                        "speculation": {{"drafts": "ngram"}},
                    }})
                    pipeline = await create_pipeline(settings)
                    transport = httpx.ASGITransport(app=create_app(pipeline, settings))
                    async with httpx.AsyncClient(
                        transport=transport, base_url="http://gateway"
                    ) as client:
                        body = {{"model": "target", "prompt": [0, 1], "max_tokens": 8}}
                        response = await client.post("/v1/completions", json=body)
                    assert response.status_code == 200, response.text
                    assert response.json()["usage"]["completion_tokens"] == 8
                    await pipeline.close()

                asyncio.run(main())
                print(sorted(set({HEAVY!r}) & set(sys.modules)))
            """)
            assert said.splitlines()[-1] == "['grpc']"
    finally:
        for server in servers:
            server.terminate()
            server.communicate(timeout=30)


def test_importing_the_package_is_instant_and_loads_next_to_nothing() -> None:
    said = run_fresh("""
        import sys
        import outrider
        heavy = {"numpy", "pydantic", "starlette", "tokenizers", "torch", "typer"}
        print(sorted(heavy & set(sys.modules)))
    """)
    assert said.strip() == "[]"


def test_without_the_engine_extra_a_real_model_is_refused_in_one_line(smollm2_folder: Path) -> None:
    """An interpreter in which torch cannot be imported stands for an install without the extra."""
    said = run_fresh(f"""
        import sys
        sys.modules["torch"] = None
        sys.argv = ["outrider", "run", "--port", "0", "--target", {str(smollm2_folder)!r}]
        sys.stderr = sys.stdout
        from outrider.cli import main
        try:
            main()
        except SystemExit as end:
            print("exit", end.code)
    """)
    assert "pip install 'outrider[engine]'" in " ".join(said.split())
    assert said.strip().endswith("exit 1")
    assert "Traceback" not in said
