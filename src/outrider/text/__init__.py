"""Text at both ends of a request: chat templates, tokenizing, detokenizing, stop strings."""

from outrider.text.chat import ChatTemplate
from outrider.text.detokenize import Detokenizer
from outrider.text.stop import StopStrings
from outrider.text.tokenizer import HFTokenizer, IdTokenizer, Tokenizer, create_tokenizer
from outrider.text.vocabulary import (
    check_same_vocabulary,
    coverage,
    fingerprint,
    same_vocabulary,
)

__all__ = [
    "ChatTemplate",
    "Detokenizer",
    "HFTokenizer",
    "IdTokenizer",
    "StopStrings",
    "Tokenizer",
    "check_same_vocabulary",
    "coverage",
    "create_tokenizer",
    "fingerprint",
    "same_vocabulary",
]
