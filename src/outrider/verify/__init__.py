"""Verification as mathematics: pure outcome laws over dense rows, and thin samplers over them."""

from outrider.verify.match import coupling_acceptance, greedy_law, match, onehot_law
from outrider.verify.outcome import Outcome
from outrider.verify.token import token_law, verify_tokens

__all__ = [
    "Outcome",
    "coupling_acceptance",
    "greedy_law",
    "match",
    "onehot_law",
    "token_law",
    "verify_tokens",
]
