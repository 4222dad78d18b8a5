"""What is kept of each of the target's rows: its likeliest tokens, and its normalisers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from outrider.sampling import Support

__all__ = ["Recorder"]


class Recorder:
    """Keeps the rows that the tokens of one conversation were drawn from.

    Args:
        k: likeliest tokens of each row.
        temperatures: above 0; at each, the logarithm of the row's normaliser is kept.
    """

    def __init__(self, k: int, temperatures: Sequence[float]) -> None:
        self._k = k
        self._temperatures = tuple(temperatures)
        self._ids: list[npt.NDArray[np.int64]] = []
        self._logits: list[npt.NDArray[np.float32]] = []
        self._logsumexps: list[list[float]] = []

    def record(self, row: Tensor) -> None:
        """Keep what is wanted of raw logits, float32 of shape [V]; the row itself is not kept.

        Raises:
            ValueError: the row is shorter than k.
        """
        if row.numel() < self._k:
            raise ValueError(f"a row of {row.numel()} logits has no {self._k} likeliest")
        record = self._on_host if row.device.type == "cpu" else self._on_device
        ids, logits, logsumexps = record(row)
        self._ids.append(ids)
        self._logits.append(logits)
        self._logsumexps.append(logsumexps)

    def support_ids(self) -> npt.NDArray[np.int32]:
        """int32 [rows, k], descending by logit."""
        return np.asarray(self._ids, dtype=np.int32).reshape(-1, self._k)

    def support_logits(self) -> npt.NDArray[np.float32]:
        """float32 [rows, k], in the order of `support_ids`."""
        return np.asarray(self._logits, dtype=np.float32).reshape(-1, self._k)

    def logsumexps(self) -> npt.NDArray[np.float32]:
        """float32 [rows, T]: logsumexp(row / t) for each temperature t."""
        kept = np.asarray(self._logsumexps, dtype=np.float32)
        return kept.reshape(-1, len(self._temperatures))

    def _on_host(
        self, row: Tensor
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], list[float]]:
        values: npt.NDArray[np.float32] = row.numpy()
        top = float(values.max())
        ids = Support(None, values, top, 1.0).largest(self._k)
        ids = ids[np.argsort(-values[ids], kind="stable")]  # the lowest id first among equals
        logsumexps = [
            top / t + float(np.log(Support(None, values, top, t).total)) for t in self._temperatures
        ]
        return ids, values[ids], logsumexps

    def _on_device(
        self, row: Tensor
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], list[float]]:
        # Only what is kept comes over.
        logits, ids = torch.topk(row, self._k)
        sums = torch.stack([torch.logsumexp(row / t, dim=0) for t in self._temperatures])
        return ids.cpu().numpy(), logits.cpu().numpy(), sums.tolist()
