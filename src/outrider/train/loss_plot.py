"""`loss.svg`: how loss and acceptance went over a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["draw_losses"]


def draw_losses(entries: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw the entries of a `Journal`; nothing if there are none of training.

    Raises:
        OSError: the file cannot be written.
    """
    trained = [each for each in entries if "loss" in each]
    if not trained:
        return
    from matplotlib.figure import Figure  # noqa: PLC0415 # a second to import, used now and then

    figure = Figure(figsize=(8, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    steps = [each["step"] for each in trained]
    above.plot(steps, [each["loss"] for each in trained], label="loss", color="tab:gray")
    above.set_ylabel("loss per token")
    below.plot(steps, [each["acceptance"] for each in trained], label="acceptance, training")
    below.plot(steps, [each["agreement"] for each in trained], label="agreement, training")
    judged = [each for each in entries if "held_out" in each]
    for name, color in (("acceptance", "tab:blue"), ("agreement", "tab:orange")):
        below.plot(
            [each["step"] for each in judged],
            [each["held_out"][name] for each in judged],
            "o--",
            color=color,
            label=f"{name}, held out",
        )
    below.set_ylabel("share of tokens")
    below.set_xlabel("optimizer step")
    below.legend(fontsize="small")
    figure.savefig(file)
