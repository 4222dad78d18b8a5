import re

from outrider.config import DEFAULT_TARGET
from outrider.models import CATALOGUE
from outrider.models.catalogue import HubSource, PackageSource, find
from outrider.models.hub import is_hub_id


def test_names_are_unique_and_cannot_be_mistaken_for_paths_or_hub_ids() -> None:
    names = [entry.name for entry in CATALOGUE]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9._-]+", name) for name in names)


def test_every_entry_says_where_it_comes_from_and_under_which_licence() -> None:
    for entry in CATALOGUE:
        assert entry.description
        assert entry.licence
        assert entry.size > 0
        match entry.source:
            case PackageSource() as source:
                assert "==" in source.requirement
                assert re.fullmatch("[0-9a-f]{64}", source.sha256)
            case HubSource(repo_id):
                assert is_hub_id(repo_id)


def test_the_default_model_is_a_pinned_package_file() -> None:
    entry = find(DEFAULT_TARGET)
    assert entry is not None
    assert isinstance(entry.source, PackageSource)
    assert entry.source.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"


def test_an_unknown_name_finds_nothing() -> None:
    assert find("no-such-model") is None
