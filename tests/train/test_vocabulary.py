from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from outrider.drafters.translation import Translation
from outrider.errors import TrainingError
from outrider.models import TextAssets
from outrider.text import HFTokenizer, fingerprint
from outrider.train.records import Example, Source
from outrider.train.store import Examples, Part, ShardWriter, read_examples
from outrider.train.vocabulary import choose_vocabulary, measure_coverage
from tests.train.toy import CHAT_TEMPLATE, IM_END, IM_START, MERGES, VOCAB, toy_tokenizer

START_ID, END_ID = VOCAB - 2, VOCAB - 1
ALWAYS = 256 + 2
MERGED = range(256, 256 + len(MERGES))
Write = Callable[..., list[Examples]]


@pytest.fixture(scope="module")
def tokenizer() -> HFTokenizer:
    return HFTokenizer(toy_tokenizer())


def assets(
    template: str | None = CHAT_TEMPLATE, eos: frozenset[int] = frozenset({END_ID})
) -> TextAssets:
    return TextAssets(toy_tokenizer(), template, {"eos_token": IM_END}, None, eos)


@pytest.fixture
def write(tmp_path: Path, tokenizer: HFTokenizer) -> Write:
    """Writes one conversation: a prompt, what the target made, and its rows of two ids each."""

    def folder(
        made: Sequence[int],
        *,
        prompt: Sequence[int] = (0,),
        other: int = 0,
        share: float = 0.25,
        held_out: bool = False,
        eos: tuple[int, ...] = (),
    ) -> list[Examples]:
        source = Source(
            model_id="toy",
            model_hash="toy",
            vocab_fingerprint=fingerprint(tokenizer.token_strings),
            vocab_size=VOCAB,
            eos_token_ids=eos,
            k=2,
        )
        support = np.asarray([[each, other] for each in made], dtype=np.int32)
        logits = np.log(np.asarray([[0.9 - share, share]] * len(made), dtype=np.float32))
        example = Example(
            id="0",
            category="toy",
            token_ids=np.asarray([*prompt, *made], dtype=np.int32),
            generated=np.asarray([False] * len(prompt) + [True] * len(made)),
            support_ids=support,
            support_logits=logits,
            logsumexps=np.zeros((len(made), 1), dtype=np.float32),
            held_out=held_out,
        )
        place = tmp_path / "data"
        ShardWriter(place, source).write(0, [example])
        return [read_examples(place, Part.ALL)]

    return folder


def test_bytes_ends_and_the_special_tokens_of_the_template_are_always_kept(
    write: Write, tokenizer: HFTokenizer
) -> None:
    kept = choose_vocabulary(write([256]), tokenizer, ALWAYS, assets=assets())
    assert kept.tolist() == [*range(256), START_ID, END_ID]
    assert kept.dtype == np.int64


def test_special_tokens_that_nothing_names_are_left_out(
    write: Write, tokenizer: HFTokenizer
) -> None:
    kept = choose_vocabulary(write([256]), tokenizer, 257, assets=assets(None))
    assert kept.tolist() == [*range(256), END_ID]
    whole = choose_vocabulary(write([256]), tokenizer, VOCAB, assets=assets(None))
    assert START_ID not in whole
    assert whole.size == VOCAB - 1


def test_special_tokens_that_stand_in_prompts_are_kept(
    write: Write, tokenizer: HFTokenizer
) -> None:
    data = write([256], prompt=[START_ID])
    assert START_ID in choose_vocabulary(data, tokenizer, ALWAYS, assets=assets(None))


def test_a_template_names_special_tokens_by_variable_as_well(
    write: Write, tokenizer: HFTokenizer
) -> None:
    text = TextAssets(
        toy_tokenizer(),
        "{{ bos_token }}{{ messages[0].content }}",
        {"bos_token": IM_START},
        None,
        frozenset({END_ID}),
    )
    assert START_ID in choose_vocabulary(write([256]), tokenizer, ALWAYS, assets=text)


def test_ends_that_only_the_data_names_are_kept(write: Write, tokenizer: HFTokenizer) -> None:
    data = write([256], eos=(START_ID,))
    kept = choose_vocabulary(data, tokenizer, ALWAYS, assets=assets(None))
    assert START_ID in kept


def test_the_rest_are_the_tokens_that_the_target_says_most(
    write: Write, tokenizer: HFTokenizer
) -> None:
    data = write([258] * 3 + [261] * 2 + [256])
    assert set(choose_vocabulary(data, tokenizer, ALWAYS + 1, assets=assets())) >= {258}
    two = choose_vocabulary(data, tokenizer, ALWAYS + 2, assets=assets())
    assert [each for each in two if each in MERGED] == [258, 261]


def test_tokens_of_prompts_do_not_count(write: Write, tokenizer: HFTokenizer) -> None:
    data = write([258], prompt=[0, *[261] * 9])
    kept = choose_vocabulary(data, tokenizer, ALWAYS + 1, assets=assets())
    assert [each for each in kept if each in MERGED] == [258]


def test_what_the_target_held_likely_but_did_not_say_counts_too(
    write: Write, tokenizer: HFTokenizer
) -> None:
    data = write([0] * 5, other=260)
    kept = choose_vocabulary(data, tokenizer, ALWAYS + 1, assets=assets())
    assert [each for each in kept if each in MERGED] == [260]


def test_where_the_data_is_short_the_lowest_ids_fill_up(
    write: Write, tokenizer: HFTokenizer
) -> None:
    kept = choose_vocabulary(write([262]), tokenizer, ALWAYS + 3, assets=assets())
    assert [each for each in kept if each in MERGED] == [256, 257, 262]


def test_no_room_for_what_every_draft_needs_is_told(write: Write, tokenizer: HFTokenizer) -> None:
    with pytest.raises(TrainingError, match=f"100 has no room for the {ALWAYS} tokens"):
        choose_vocabulary(write([256]), tokenizer, 100, assets=assets())


def test_data_without_answers_is_refused(write: Write, tokenizer: HFTokenizer) -> None:
    data = [read_examples(Path(write([256])[0]._paths[0].parent), Part.HELD_OUT)]
    with pytest.raises(TrainingError, match="no tokens of the target"):
        choose_vocabulary(data, tokenizer, ALWAYS, assets=assets())
    with pytest.raises(TrainingError, match="no answers"):
        measure_coverage(data, np.arange(4))


def test_coverage_is_the_share_of_tokens_and_of_mass_with_what_is_not_stored_outside(
    write: Write,
) -> None:
    data = write([1, 1, 1, 9], other=2)
    found = measure_coverage(data, np.asarray([1, 3]))
    assert (found.size, found.generated) == (2, 4)
    assert found.tokens == pytest.approx(3 / 4)
    assert found.mass == pytest.approx(0.65 * 3 / 4, rel=1e-3)
    everything = measure_coverage(data, np.arange(VOCAB))
    assert everything.tokens == 1
    assert everything.mass == pytest.approx(0.9, rel=1e-3)


def test_every_text_can_be_read_in_the_smallest_vocabulary(
    write: Write, tokenizer: HFTokenizer
) -> None:
    kept = choose_vocabulary(write([256]), tokenizer, ALWAYS, assets=assets())
    translation = Translation.trimmed(tokenizer, kept)
    text = "the user in Zürich: 日本\x00"
    pieces = translation.draft_ids(tokenizer.encode(text, add_special_tokens=False))
    assert tokenizer.decode(kept[pieces].tolist()) == text


def test_one_token_for_each_byte_is_enough_where_words_and_fallbacks_say_the_same(
    write: Write,
) -> None:
    strings = [*(f"<0x{byte:02X}>" for byte in range(256)), "A", "AB"]
    spelled = HFTokenizer(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": [],
                "decoder": {
                    "type": "Sequence",
                    "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}],
                },
                "model": {
                    "type": "BPE",
                    "vocab": {string: index for index, string in enumerate(strings)},
                    "merges": [],
                    "byte_fallback": True,
                },
            }
        )
    )
    text = TextAssets("", None, {}, None, frozenset({0}))
    kept = choose_vocabulary(write([256]), spelled, 256, assets=text).tolist()
    assert 256 in kept
    assert ord("A") not in kept
    assert [each for each in range(256) if each not in kept] == [ord("A")]
