import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from outrider.errors import CorruptModel, UnsupportedModel
from outrider.models import load_text_assets
from outrider.text import HFTokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of text files whose tokenizer adds nothing to a text."""
    tokenizer = Tokenizer(models.BPE({"<s>": 0, "</s>": 1, "<|eot|>": 2, "a": 3}, []))
    tokenizer.add_special_tokens([AddedToken(name) for name in ("<s>", "</s>", "<|eot|>")])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path, "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "<|eot|>"})
    write(tmp_path, "config.json", {"eos_token_id": 1})
    return tmp_path


def write(folder: Path, name: str, value: dict[str, Any]) -> None:
    (folder / name).write_text(json.dumps(value))


def processed(folder: Path, processor: Any) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processor
    tokenizer.save(str(folder / "tokenizer.json"))


BOS = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])


def test_the_ends_are_all_that_any_file_names(folder: Path) -> None:
    assert load_text_assets(folder).eos_token_ids == {1, 2}
    write(folder, "generation_config.json", {"eos_token_id": [3, 1]})
    assert load_text_assets(folder).eos_token_ids == {1, 2, 3}


def test_a_model_may_name_no_end(folder: Path) -> None:
    write(folder, "tokenizer_config.json", {"eos_token": None})
    write(folder, "config.json", {"eos_token_id": None})
    assert load_text_assets(folder).eos_token_ids == frozenset()


def test_special_tokens_come_as_strings_or_objects_from_either_file(folder: Path) -> None:
    write(folder, "special_tokens_map.json", {"pad_token": "<pad>", "bos_token": "<other>"})
    config = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>"}
    write(folder, "tokenizer_config.json", config)
    assert load_text_assets(folder).special_tokens == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("one", "one"),
        ([{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}], "d"),
        ([{"name": "rag", "template": "r"}], None),
        (None, None),
    ],
)
def test_the_chat_template_of_the_configuration_is_found(
    folder: Path, given: Any, expected: str | None
) -> None:
    write(folder, "tokenizer_config.json", {"chat_template": given})
    assert load_text_assets(folder).chat_template == expected


def test_a_chat_template_in_a_file_of_its_own_comes_first(folder: Path) -> None:
    write(folder, "tokenizer_config.json", {"chat_template": "old"})
    (folder / "chat_template.jinja").write_text("new")
    assert load_text_assets(folder).chat_template == "new"


def test_a_tokenizer_that_adds_nothing_has_no_beginning(folder: Path) -> None:
    assert load_text_assets(folder).bos_token_id is None


@pytest.mark.parametrize(
    "processor",
    [BOS, processors.Sequence([processors.ByteLevel(trim_offsets=False), BOS])],
    ids=["alone", "in a sequence"],
)
def test_the_beginning_that_a_tokenizer_adds_is_known(folder: Path, processor: Any) -> None:
    processed(folder, processor)
    assert load_text_assets(folder).bos_token_id == 0


@pytest.mark.parametrize("with_byte_level", [False, True])
def test_a_beginning_that_the_configuration_asks_for_is_added(
    folder: Path, with_byte_level: bool
) -> None:
    if with_byte_level:
        processed(folder, processors.ByteLevel(trim_offsets=False))
    write(folder, "tokenizer_config.json", {"bos_token": "<s>", "add_bos_token": True})
    assets = load_text_assets(folder)
    assert assets.bos_token_id == 0
    tokenizer = HFTokenizer(assets.tokenizer_json)
    assert tokenizer.encode("a", add_special_tokens=True) == [0, 3]
    assert tokenizer.encode("a", add_special_tokens=False) == [3]


def test_a_beginning_is_not_added_twice(folder: Path) -> None:
    processed(folder, BOS)
    write(folder, "tokenizer_config.json", {"bos_token": "<s>", "add_bos_token": True})
    tokenizer = HFTokenizer(load_text_assets(folder).tokenizer_json)
    assert tokenizer.encode("a", add_special_tokens=True) == [0, 3]


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.json", "spiece.model"])
def test_a_slow_tokenizer_alone_is_refused_with_the_way_out(folder: Path, name: str) -> None:
    (folder / "tokenizer.json").rename(folder / name)
    with pytest.raises(UnsupportedModel, match="save_pretrained") as caught:
        load_text_assets(folder)
    assert name in str(caught.value)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptModel, match=r"no tokenizer\.json"):
        load_text_assets(tmp_path)


@pytest.mark.parametrize(
    "content", ["{", "[]", '"text"', "\ud800".encode("utf-16", "surrogatepass")]
)
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
def test_a_file_that_holds_no_json_object_is_named(
    folder: Path, name: str, content: str | bytes
) -> None:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CorruptModel) as caught:
        load_text_assets(folder)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_smollm2_ends_at_the_end_of_a_message_and_wants_no_beginning(smollm2_folder: Path) -> None:
    assets = load_text_assets(smollm2_folder)
    assert assets.eos_token_ids == {2}
    assert assets.bos_token_id is None
    assert assets.special_tokens.items() >= {("eos_token", "<|im_end|>")}
    assert assets.chat_template is not None


def test_a_chat_template_that_is_no_text_is_named(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(CorruptModel, match=r"chat_template\.jinja"):
        load_text_assets(folder)


def test_pre_tokenizers_are_left_as_they_are(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.pre_tokenizer = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    text = (folder / "tokenizer.json").read_text()
    assert load_text_assets(folder).tokenizer_json == text
