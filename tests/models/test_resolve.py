import json
import subprocess
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from outrider.config import DEFAULT_TARGET
from outrider.errors import (
    ConfigError,
    CorruptModel,
    FetchFailed,
    UnknownModel,
    UnsupportedModel,
)
from outrider.models import load_text_assets, resolve
from outrider.models import resolve as resolve_function
from outrider.models.catalogue import PackageSource, find
from outrider.models.fetch import fetched_path

resolve_module = sys.modules[resolve_function.__module__]

Usage = namedtuple("Usage", "total used free")


class Converter:
    """In place of the engine's: writes the two files and counts."""

    def __init__(self, wait_s: float = 0.0) -> None:
        self.calls: list[str] = []
        self._wait_s = wait_s

    def __call__(
        self,
        source: Path,
        folder: Path,
        dtype: str,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.calls.append(dtype)
        time.sleep(self._wait_s)
        (folder / "config.json").write_text(json.dumps({"eos_token_id": 1}))
        save_file({"w": np.ones(3, np.float32)}, folder / "model.safetensors")
        if progress is not None:
            progress(1, 1)


@pytest.fixture
def gguf(write_gguf: Callable[..., Path], gpt2_metadata: dict[str, Any]) -> Path:
    return write_gguf(gpt2_metadata)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def hf_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file({"w": np.ones(3, np.float32)}, folder / "model.safetensors")
    return folder


def test_a_gguf_becomes_a_folder_with_all_that_the_engine_and_the_gateway_read(
    gguf: Path, home: Path
) -> None:
    model = resolve(str(gguf), home=home, convert=Converter())
    assert model.model_id == "tiny"
    assert {path.name for path in model.path.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "outrider.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assets = load_text_assets(model.path)
    assert assets.eos_token_ids == {1}
    assert assets.chat_template == "{{ messages }}"
    assert not any((home / "staging").iterdir())


def test_a_gguf_is_converted_once_for_each_element_type(gguf: Path, home: Path) -> None:
    converter = Converter()
    first = resolve(str(gguf), home=home, convert=converter)
    start = time.perf_counter()
    assert resolve(str(gguf), home=home, convert=converter) == first
    assert time.perf_counter() - start < 0.5
    other = resolve(str(gguf), home=home, dtype="bfloat16", convert=converter)
    assert other.path != first.path
    assert other.model_hash != first.model_hash
    assert converter.calls == ["float32", "bfloat16"]


def test_a_changed_gguf_is_converted_anew(
    gguf: Path, home: Path, write_gguf: Callable[..., Path], gpt2_metadata: dict[str, Any]
) -> None:
    converter = Converter()
    resolve(str(gguf), home=home, convert=converter)
    write_gguf(gpt2_metadata | {"general.name": "another"})
    resolve(str(gguf), home=home, convert=converter)
    assert len(converter.calls) == 2


def test_two_processes_at_once_convert_once(gguf: Path, home: Path) -> None:
    converter = Converter(wait_s=0.3)
    found = []
    threads = [
        threading.Thread(
            target=lambda: found.append(resolve(str(gguf), home=home, convert=converter))
        )
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert len(set(found)) == 1
    assert len(converter.calls) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, UnsupportedModel])
def test_a_conversion_that_fails_leaves_nothing_behind(
    gguf: Path, home: Path, error: type[BaseException]
) -> None:
    def fail(source: Path, folder: Path, dtype: str, progress: object) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise error

    with pytest.raises(error):
        resolve(str(gguf), home=home, convert=fail)
    assert not any((home / "staging").iterdir())
    assert not (home / "converted").exists()


def test_a_disk_too_small_for_the_weights_is_noticed_first(
    gguf: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converter = Converter()
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(1, 1, 1000))
    with pytest.raises(FetchFailed, match="converting tiny to float32 needs"):
        resolve(str(gguf), home=home, convert=converter)
    assert converter.calls == []


def test_progress_names_what_is_being_done(gguf: Path, home: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    resolve(str(gguf), home=home, convert=Converter(), progress=lambda *step: seen.append(step))
    assert seen == [("converting tiny", 1, 1)]


def test_a_gguf_of_an_unknown_tokenizer_is_refused_before_it_is_converted(
    home: Path, write_gguf: Callable[..., Path], gpt2_metadata: dict[str, Any]
) -> None:
    converter = Converter()
    path = write_gguf(gpt2_metadata | {"tokenizer.ggml.pre": "viking"})
    with pytest.raises(UnsupportedModel, match="viking"):
        resolve(str(path), home=home, convert=converter)
    assert converter.calls == []


def test_a_damaged_converted_folder_is_named(gguf: Path, home: Path) -> None:
    model = resolve(str(gguf), home=home, convert=Converter())
    (model.path / "outrider.json").write_text("{")
    with pytest.raises(CorruptModel, match="delete it"):
        resolve(str(gguf), home=home, convert=Converter())


def test_a_folder_is_used_as_it_is(hf_folder: Path, home: Path) -> None:
    model = resolve(str(hf_folder), home=home)
    assert (model.path, model.model_id) == (hf_folder, "my-model")
    assert not home.exists()


def test_equal_folders_have_equal_hashes_and_types_count(hf_folder: Path, home: Path) -> None:
    model = resolve(str(hf_folder), home=home)
    assert resolve(f"{hf_folder}/", home=home) == model
    assert resolve(str(hf_folder), home=home, dtype="float16").model_hash != model.model_hash


def test_a_folder_without_a_configuration_points_to_its_gguf(tmp_path: Path, home: Path) -> None:
    with pytest.raises(CorruptModel, match=r"no config\.json"):
        resolve(str(tmp_path), home=home)
    (tmp_path / "x.gguf").write_text("")
    with pytest.raises(CorruptModel, match=r"name the file, .*x\.gguf"):
        resolve(str(tmp_path), home=home)


def test_pickled_weights_are_refused(hf_folder: Path, home: Path) -> None:
    (hf_folder / "model.safetensors").rename(hf_folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match="pickles"):
        resolve(str(hf_folder), home=home)


def test_a_folder_without_weights_is_refused(hf_folder: Path, home: Path) -> None:
    (hf_folder / "model.safetensors").unlink()
    with pytest.raises(CorruptModel, match=r"no \*\.safetensors file"):
        resolve(str(hf_folder), home=home)


def test_a_catalogue_name_is_fetched_from_its_package(
    gguf: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def fetch(entry: Any, source: Any, **options: Any) -> Path:
        asked.append(entry.name)
        assert options["home"] == home
        return gguf

    monkeypatch.setattr(resolve_module, "fetch_package", fetch)
    first = resolve(DEFAULT_TARGET, home=home, convert=Converter())
    assert first.model_id == DEFAULT_TARGET
    assert resolve(DEFAULT_TARGET, home=home) == first
    assert asked == [DEFAULT_TARGET]


def test_a_catalogue_name_may_stand_for_a_hub_repository(
    hf_folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def fetch(repo_id: str) -> Path:
        asked.append(repo_id)
        return hf_folder

    monkeypatch.setattr(resolve_module, "fetch_hub", fetch)
    model = resolve("smollm2-360m-instruct", home=home)
    assert (model.path, model.model_id) == (hf_folder, "smollm2-360m-instruct")
    assert resolve("some/repository", home=home).model_id == "some/repository"
    assert asked == ["HuggingFaceTB/SmolLM2-360M-Instruct", "some/repository"]


def test_a_catalogue_name_wins_over_a_folder_unless_it_is_written_as_a_path(
    hf_folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "smollm2-360m-instruct"
    folder = hf_folder.rename(hf_folder.parent / name)
    monkeypatch.chdir(folder.parent)
    monkeypatch.setattr(resolve_module, "fetch_hub", lambda repo_id: folder)
    assert resolve(f"./{name}", home=home).path == folder
    assert resolve(name, home=home).model_id == name


def test_a_folder_wins_over_a_hub_id_of_the_same_spelling(
    hf_folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hf_folder.parent.parent)
    spec = f"{hf_folder.parent.name}/{hf_folder.name}"
    assert resolve(spec, home=home).path == hf_folder


def test_a_name_nobody_knows_lists_what_it_may_be(home: Path) -> None:
    with pytest.raises(UnknownModel) as caught:
        resolve("smollm2-135m", home=home)
    message = str(caught.value)
    for part in ("'smollm2-135m'", f"did you mean {DEFAULT_TARGET}", "GGUF", "org/name"):
        assert part in message
    assert "\n" not in message


@pytest.mark.parametrize("spec", ["./none", "/no/such/folder", "~/none", "none.gguf", "a/b.gguf"])
def test_a_path_that_does_not_exist_is_not_looked_for_on_the_hub(spec: str, home: Path) -> None:
    with pytest.raises(UnknownModel, match="no file or folder"):
        resolve(spec, home=home)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path, home: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"something")
    with pytest.raises(UnknownModel, match="not a GGUF"):
        resolve(str(tmp_path / "weights.bin"), home=home)


def test_an_unknown_element_type_is_refused(home: Path) -> None:
    with pytest.raises(ConfigError, match="'int7'"):
        resolve(DEFAULT_TARGET, home=home, dtype="int7")


def test_the_default_model_converted_by_the_engine_is_whole(smollm2_folder: Path) -> None:
    record = json.loads((smollm2_folder / "outrider.json").read_text())
    entry = find(DEFAULT_TARGET)
    assert entry is not None
    assert isinstance(entry.source, PackageSource)
    assert record["source_identity"] == entry.source.sha256
    assert record["source"] == entry.source.file_name
    weights = load_file(smollm2_folder / "model.safetensors")
    assert weights["model.embed_tokens.weight"].shape == (49152, 576)


def test_a_start_with_everything_in_place_takes_well_under_a_second(smollm2_folder: Path) -> None:
    home = smollm2_folder.parent.parent
    start = time.perf_counter()
    assert resolve(DEFAULT_TARGET, home=home).path == smollm2_folder
    assert time.perf_counter() - start < 0.5


def test_the_default_model_stays_usable_without_its_gguf(gguf: Path, home: Path) -> None:
    entry = find(DEFAULT_TARGET)
    assert entry is not None
    assert isinstance(entry.source, PackageSource)
    place = fetched_path(entry, entry.source, home=home)
    place.parent.mkdir(parents=True)
    gguf.rename(place)
    first = resolve(DEFAULT_TARGET, home=home, convert=Converter())
    place.unlink()
    assert resolve(DEFAULT_TARGET, home=home) == first


def test_naming_models_loads_neither_torch_nor_the_hubs_client() -> None:
    program = (
        "import sys, outrider.models, outrider.text\n"
        "heavy = {'torch', 'huggingface_hub', 'gguf', 'transformers'} & set(sys.modules)\n"
        "raise SystemExit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_best_depends_on_the_device_and_on_the_form_of_the_weights(
    gguf: Path, hf_folder: Path, home: Path
) -> None:
    converter = Converter()
    assert resolve(str(gguf), home=home, dtype="auto", convert=converter).dtype == "int4"
    assert resolve(str(hf_folder), home=home, dtype="auto").dtype == "int8"
    assert resolve(str(hf_folder), home=home, dtype="auto", device="cuda").dtype == "bfloat16"
    assert converter.calls == ["int4"]


def test_4_bits_are_refused_for_a_folder_that_has_none(hf_folder: Path, home: Path) -> None:
    with pytest.raises(ConfigError, match=r"int4 takes 4-bit weights as they are.*use int8"):
        resolve(str(hf_folder), home=home, dtype="int4")
