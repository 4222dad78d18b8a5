from __future__ import annotations

from pathlib import Path

import pytest

from outrider.config import Settings, load_settings
from outrider.errors import ConfigError


@pytest.fixture(autouse=True)
def _no_settings_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTRIDER_HOME", raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "outrider.toml"
    file.write_text('[server]\nport = 1000\nhost = "0.0.0.0"\n[speculation]\ndrafts = ["self"]\n')
    return file


def test_without_anything_the_defaults_hold() -> None:
    settings = load_settings()
    assert settings.server.host == "127.0.0.1"
    assert settings.home == Path.home() / ".cache" / "outrider"
    assert settings.speculation.drafts == ("ngram",)


def test_flags_beat_the_environment_and_that_beats_the_file(monkeypatch, file) -> None:
    monkeypatch.setenv("OUTRIDER_SERVER__PORT", "2000")
    settings = load_settings(file, {"server": {"drain_s": 3.0}})
    assert (settings.server.host, settings.server.port) == ("0.0.0.0", 2000)  # noqa: S104 # a value
    assert settings.server.drain_s == 3.0
    assert load_settings(file, {"server": {"port": 3000}}).server.port == 3000


def test_flags_that_were_not_given_change_nothing(file) -> None:
    assert load_settings(file, {"server": {"port": None}, "engine": {}}).server.port == 1000


def test_the_cache_folder_is_outrider_home(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path))
    assert load_settings().home == tmp_path


def test_drafters_may_be_separated_by_commas(monkeypatch) -> None:
    monkeypatch.setenv("OUTRIDER_SPECULATION__DRAFTS", "ngram, layers:10")
    assert load_settings().speculation.drafts == ("ngram", "layers:10")


def test_drafters_may_be_a_json_list(monkeypatch) -> None:
    monkeypatch.setenv("OUTRIDER_SPECULATION__DRAFTS", '["self", "ngram"]')
    assert load_settings().speculation.drafts == ("self", "ngram")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GB", 2_000_000_000),
        ("512 MiB", 512 * 1024**2),
        ("1.5gib", 3 * 1024**3 // 2),
        ("100kb", 100_000),
        ("4096", 4096),
        ("auto", 0),
        (4096, 4096),
    ],
)
def test_memory_is_written_as_people_write_it(text, size) -> None:
    assert load_settings(None, {"engine": {"kv_memory": text}}).engine.kv_memory == size


@pytest.mark.parametrize("text", ["", "much", "2XB", "-1GB", "1.2.3GB", "GB", "2 GB 5", "nan"])
def test_memory_that_makes_no_sense_is_refused_with_an_example(text) -> None:
    with pytest.raises(ConfigError, match=r"engine\.kv_memory is .*2GB"):
        load_settings(None, {"engine": {"kv_memory": text}})


def test_the_cache_folder_may_lie_below_the_users_own(monkeypatch) -> None:
    monkeypatch.setenv("OUTRIDER_HOME", "~/models")
    assert load_settings().home == Path.home() / "models"


@pytest.mark.parametrize("name", ["outrider_server__port", "OUTRIDER_SERVER__PORT"])
def test_the_case_of_a_variable_does_not_matter(monkeypatch, name) -> None:
    monkeypatch.setenv(name, "many")
    with pytest.raises(ConfigError, match=f"from {name}"):
        load_settings()


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_settings().server.port = 1


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        ({"server": {"port": 99999}}, "server.port is 99999 (from the command line)"),
        ({"engine": {"dtype": "int3"}}, "'int8' or 'int4'"),
        ({"speculation": {"min_lookahead": 20}}, "min_lookahead is 20, above max_lookahead 16"),
        ({"speculation": {"lookahead": 20}}, "lookahead is 20, above max_lookahead 16"),
        ({"speculation": {"drafts": "none,ngram"}}, "drafts is 'none, ngram'"),
        ({"speculation": {"drafts": ""}}, "drafts is ''"),
        ({"speculation": {"deadline_ms": float("nan")}}, "deadline_ms is nan"),
        ({"server": {"prot": 1}}, "there is no setting server.prot"),
    ],
)
def test_a_bad_flag_is_named_with_its_value(overrides, complaint) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(None, overrides)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[server]\nport = "x"\n', "server.port is 'x' (from"),
        ("[server]\nprot = 1\n", "there is no setting server.prot"),
        ("[sever]\n", "there is no setting sever"),
        ("server = 5\n", "write its settings under [server]"),
        ('home = ""\n', "name a folder"),
        ("[server\n", "is not valid TOML"),
    ],
)
def test_a_bad_file_is_named_with_the_place(tmp_path, text, complaint) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(file)
    assert complaint in str(caught.value)
    assert "bad.toml" in str(caught.value)


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"there is no configuration file .*none\.toml"):
        load_settings(tmp_path / "none.toml")


def test_a_bad_variable_is_named(monkeypatch) -> None:
    monkeypatch.setenv("OUTRIDER_SERVER__PORT", "many")
    with pytest.raises(ConfigError, match=r"server\.port is 'many' \(from OUTRIDER_SERVER__PORT\)"):
        load_settings()


@pytest.mark.parametrize(
    "name", ["OUTRIDER_PORT", "OUTRIDER_SEVER__PORT", "OUTRIDER_HOMES", "OUTRIDER_HOME__X"]
)
def test_a_misspelt_variable_is_not_ignored(monkeypatch, name) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigError, match=f"{name} means nothing"):
        load_settings()


def test_every_setting_is_documented() -> None:
    for section in Settings.model_fields:
        assert section == "home" or Settings.model_fields[section].annotation is not None
        model = Settings.model_fields[section].annotation
        for name, field in getattr(model, "model_fields", {}).items():
            assert field.description, f"{section}.{name}"
