"""Every error that Outrider raises on purpose, in one tree.

    OutriderError
    ├── ConfigError            settings that cannot work: say which, and what would
    ├── ModelError             a model that cannot be fetched, read or run
    │   ├── UnknownModel       no such name, folder, file or hub id
    │   ├── FetchFailed        known, but it could not be brought here
    │   ├── CorruptModel       there, but not readable
    │   ├── UnsupportedModel   readable, but of an architecture that the engine does not run
    │   └── VocabularyMismatch draft and target do not share their tokens
    ├── RequestError           a caller asked for something impossible (HTTP 400)
    │   └── ContextLengthExceeded
    ├── Overloaded             no room now, try again later (HTTP 429)
    ├── DraftFailed            a drafter failed; the round goes on without a draft
    ├── TargetFailed           the target failed; the request ends
    ├── TrainingError          a draft cannot be trained, or not from this
    │   └── CorruptData        training data that cannot be read
    ├── StaleRound             a round older than the session's latest was asked for
    └── SessionLost            the target no longer holds the session

Messages are one line for a tired person: what was wrong, with which value, and what to do. Foreign
errors are translated where they enter, once.
"""

__all__ = [
    "ConfigError",
    "ContextLengthExceeded",
    "CorruptData",
    "CorruptModel",
    "DraftFailed",
    "FetchFailed",
    "ModelError",
    "OutriderError",
    "Overloaded",
    "RequestError",
    "SessionLost",
    "StaleRound",
    "TargetFailed",
    "TrainingError",
    "UnknownModel",
    "UnsupportedModel",
    "VocabularyMismatch",
]


class OutriderError(Exception):
    """Base of every error that Outrider raises on purpose; `str(error)` is one line."""


class ConfigError(OutriderError):
    """Settings that cannot work."""


class ModelError(OutriderError):
    """A model that cannot be fetched, read or run."""


class UnknownModel(ModelError):
    """No such name, folder, file or hub id."""


class FetchFailed(ModelError):
    """A known model could not be brought here."""


class CorruptModel(ModelError):
    """A model's files are there but cannot be read."""


class UnsupportedModel(ModelError):
    """A model of an architecture, or with a feature, that the engine does not run."""


class VocabularyMismatch(ModelError):
    """Draft and target do not share their token strings."""


class RequestError(OutriderError):
    """A caller asked for something impossible.

    `param` names the offending field as the caller spelled it, `code` is a stable word for
    programs.
    """

    def __init__(
        self, message: str, *, param: str | None = None, code: str = "invalid_value"
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class ContextLengthExceeded(RequestError):
    """Prompt and requested output do not fit the context of the model."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class Overloaded(OutriderError):
    """No room for another request now. `retry_after_s` is in seconds."""

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DraftFailed(OutriderError):
    """A drafter failed. The round goes on without a draft; the output is unaffected."""


class TargetFailed(OutriderError):
    """The target failed. The request cannot be completed."""


class TrainingError(OutriderError):
    """A draft model cannot be trained, or not from this data with these settings."""


class CorruptData(TrainingError):
    """Training data that cannot be read, or is not of the form that it claims."""


class StaleRound(OutriderError):
    """A round older than the session's latest was asked for."""


class SessionLost(OutriderError):
    """The target no longer holds the session; reopen it from the committed tokens."""
