"""The examples under deploy/ are what the commands take."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest
import typer
import yaml

from outrider.cli.main import app

DEPLOY = Path(__file__).parent.parent / "deploy"


def _options(*path: str) -> set[str]:
    command = typer.main.get_command(app)
    for name in path:
        command = command.commands[name]
    return {option for parameter in command.params for option in parameter.opts}


def _services() -> dict[str, dict]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]


@pytest.mark.parametrize("name", ["gateway", "target-1", "target-2", "draft"])
def test_every_service_of_the_compose_file_starts_a_command_that_exists(name) -> None:
    words = _services()[name]["command"]
    part = re.sub(r"-\d", "", name)
    assert words[:2] == ["serve", part]
    given = {word.partition("=")[0] for word in words[2:]}
    assert given <= _options("serve", part)


def test_the_services_name_each_other_by_their_names_and_default_ports() -> None:
    services = _services()
    flags = " ".join(services["gateway"]["command"])
    named = re.findall(r"(?:grpc|http)://([\w-]+):(\d+)", flags)
    assert named == [("target-1", "8002"), ("target-2", "8002"), ("draft", "8001")]
    assert all(host in services for host, _ in named)
    assert services["gateway"]["ports"] == ["127.0.0.1:8000:8000"]


def test_every_service_asks_for_the_shared_secret() -> None:
    for service in _services().values():
        assert service["environment"]["OUTRIDER_PEERS__TOKEN"].startswith(
            "${OUTRIDER_PEERS__TOKEN:?"
        )


def test_the_unit_starts_a_part_with_its_own_settings() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str
    unit.read(DEPLOY / "outrider@.service")
    words = unit["Service"]["ExecStart"].split()
    assert words == [
        "/opt/outrider/bin/outrider",
        "serve",
        "%i",
        "--config",
        "/etc/outrider/%i.toml",
    ]
    for part in ("gateway", "target", "draft"):
        assert "--config" in _options("serve", part)
    assert int(unit["Service"]["TimeoutStopSec"]) > 10  # more than drain_s by default
