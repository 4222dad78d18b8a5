"""Verification as mathematics: pure outcome laws over dense rows, and thin samplers over them."""

from outrider.verify.block import block_law
from outrider.verify.calibration import Calibration
from outrider.verify.choice import choose_method
from outrider.verify.declare import declare, draw
from outrider.verify.match import coupling_acceptance, greedy_law, match, onehot_law
from outrider.verify.outcome import Outcome
from outrider.verify.ratio import TargetRow, verify_block, verify_tokens
from outrider.verify.token import token_law

__all__ = [
    "Calibration",
    "Outcome",
    "TargetRow",
    "block_law",
    "choose_method",
    "coupling_acceptance",
    "declare",
    "draw",
    "greedy_law",
    "match",
    "onehot_law",
    "token_law",
    "verify_block",
    "verify_tokens",
]
