"""What the handlers share: the pipeline, text, admission, and the way down."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from outrider.config import Settings
from outrider.errors import RequestError
from outrider.gateway.admission import Admission
from outrider.pipeline import Pipeline
from outrider.serving import Lifecycle
from outrider.text import ChatTemplate, Tokenizer

__all__ = ["Service"]


@dataclass(frozen=True, slots=True)
class Service:
    """What the handlers share.

    Attributes:
        pipeline: decodes.
        settings: bounds.
        tokenizer: the target's.
        template: the target's, maybe unavailable.
        admission: who may run.
        lifecycle: what is under way.
        created: time of the start, in seconds since 1970.
    """

    pipeline: Pipeline
    settings: Settings
    tokenizer: Tokenizer
    template: ChatTemplate
    admission: Admission
    lifecycle: Lifecycle
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def model_id(self) -> str:
        """The one model that is served."""
        return self.pipeline.info.model_id

    @property
    def fingerprint(self) -> str:
        """Changes when the weights do; OpenAI's `system_fingerprint`."""
        return f"fp_{self.pipeline.info.model_hash.rpartition(':')[2][:16]}"

    def check_model(self, model: str | None) -> None:
        """Raise `RequestError` unless `model` is served here."""
        if model is not None and model != self.model_id:
            raise RequestError(
                f"there is no model {model[:200]!r} here; this server serves {self.model_id!r}",
                param="model",
                code="model_not_found",
            )
