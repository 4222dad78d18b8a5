"""The sections of the settings, with a line on each for `outrider config show`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator
from pydantic_settings import NoDecode

from outrider.config.values import file, size, split

__all__ = [
    "DEFAULT_TARGET",
    "DraftServerSettings",
    "EngineSettings",
    "LimitSettings",
    "PeerSettings",
    "ServerSettings",
    "SpeculationSettings",
    "TargetServerSettings",
]

DEFAULT_TARGET = "smollm2-135m-q4_1"


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ServerSettings(_Section):
    """Where the gateway listens."""

    host: str = "127.0.0.1"
    """Address to bind; the default is reachable from this machine alone."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """TCP port; 0 lets the system choose."""
    drain_s: Annotated[float, Field(ge=0, le=3600)] = 10.0
    """Seconds that running requests get to finish after SIGTERM or Ctrl-C."""


class DraftServerSettings(_Section):
    """Where a draft server listens."""

    host: str = "127.0.0.1"
    """Address to bind; the default is reachable from this machine alone."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8001
    """TCP port (HTTP); 0 lets the system choose."""
    drain_s: Annotated[float, Field(ge=0, le=3600)] = 10.0
    """Seconds that running drafts get to finish after SIGTERM or Ctrl-C."""
    max_concurrent: Annotated[int, Field(ge=1, le=4096)] = 256
    """Requests worked on at a time; more are refused with 429."""
    session_s: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    """Seconds after which a session that nobody asked for is forgotten."""
    max_body_bytes: Annotated[int, Field(ge=1024)] = 4 * 1024 * 1024
    """Largest request body."""


class TargetServerSettings(_Section):
    """Where a target server listens."""

    host: str = "127.0.0.1"
    """Address to bind; the default is reachable from this machine alone."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8002
    """TCP port (gRPC); 0 lets the system choose."""
    status_port: Annotated[int, Field(ge=0, le=65535)] = 8003
    """TCP port (HTTP) of /health, /ready and /metrics; 0 lets the system choose."""
    drain_s: Annotated[float, Field(ge=0, le=3600)] = 10.0
    """Seconds that running sessions get to finish after SIGTERM or Ctrl-C."""
    lease_s: Annotated[float, Field(ge=0, le=3600)] = 10.0
    """Seconds that sessions outlive a broken stream."""
    concurrency_limit: Annotated[int, Field(ge=1, le=100_000)] = 256
    """Calls (streams and single ones) at a time; more are refused."""
    max_message_bytes: Annotated[int, Field(ge=65_536)] = 64 * 1024 * 1024
    """Largest message in either direction; the tokenizer that gateways ask for has to fit."""


class PeerSettings(_Section):
    """How gateway, draft servers and target servers of one deployment trust each other."""

    token: SecretStr = SecretStr("")
    """Shared secret, sent as a bearer token and asked of whoever calls a draft or target server.
    Without one, these servers listen on loopback addresses alone."""
    cert_file: Annotated[Path | None, BeforeValidator(file)] = None
    """Certificate chain (PEM) that draft and target servers show; with it they speak TLS only."""
    key_file: Annotated[Path | None, BeforeValidator(file)] = None
    """Its private key (PEM)."""
    ca_file: Annotated[Path | None, BeforeValidator(file)] = None
    """Certificates (PEM) that the gateway trusts behind https:// and grpcs:// addresses; none takes
    those of the system."""
    patience_s: Annotated[float, Field(gt=0, le=3600)] = 10.0
    """Seconds that the gateway tries to reach a target again before its requests fail."""

    @model_validator(mode="after")
    def _pair(self) -> PeerSettings:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file belong together; set both or neither")
        return self


class EngineSettings(_Section):
    """What the models run on."""

    target: str = DEFAULT_TARGET
    """A known name, a folder, a GGUF file, a hub id, table:FILE, or target servers:
    grpc://HOST:PORT, several of the same model with commas between."""
    dtype: Literal["auto", "float32", "bfloat16", "int8", "int4"] = "auto"
    """What the weights are held in: int8; int4, the 4-bit weights of a GGUF file as they are and
    int8 for the rest; or plain floats. auto on a CPU takes int4 for a GGUF file, int8 for others,
    and bfloat16 on an accelerator."""
    device: str = "cpu"
    """A torch device, such as cpu or cuda."""
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """Compute threads; 0 takes one per core."""
    max_sessions: Annotated[int, Field(ge=1, le=4096)] = 32
    """Sequences held by the target at a time."""
    max_context: Annotated[int, Field(ge=0)] = 0
    """Longest prompt plus output in tokens; 0 takes the model's own limit."""
    step_tokens: Annotated[int, Field(ge=16, le=65536)] = 128
    """Most tokens in one forward pass; a longer prompt is read in several, a quarter as long while
    other sequences run."""
    kv_memory: Annotated[int, Field(ge=0), BeforeValidator(size)] = 0
    """Memory for keys and values of all sequences, such as 2GB or 512MiB: what runs waits for room
    in it, what has ended stays in the rest of it for prefix reuse. 0 or auto takes a quarter of
    what is available at the start, or less if that holds max_sessions of the longest length. A
    draft model gets room for as many tokens on top."""
    prefix_cache: bool = True
    """Keep the keys and values of sequences that have ended, for later ones of the same tenant that
    begin with the same tokens."""


class SpeculationSettings(_Section):
    """What is drafted, and how much."""

    drafts: Annotated[tuple[str, ...], NoDecode, BeforeValidator(split)] = ("ngram",)
    """Drafters, the first is the default: ngram, suffix, layers:N, self, table:FILE, a model, a
    draft server's http://HOST:PORT, mixed:A+B of several, or none. Separated by commas, or a
    list."""
    draft_at: Literal["auto", "gateway", "target"] = "auto"
    """Where drafters run that need no model, if the target is a server: beside it, so that no
    draft travels, or in the gateway. auto takes the target's where it has the same one."""
    controller: Literal["fixed", "window", "goodput"] = "goodput"
    """How the lookahead is chosen: by measured gain and cost, by recent acceptance, or not."""
    ahead: Literal["auto", "always", "never"] = "auto"
    """Whether the next draft is made while the target judges the one before, as if that held: where
    it is measured to pay (goodput alone), with every draft (fixed alone), or never."""
    lookahead: Annotated[int, Field(ge=0, le=64)] = 4
    """Tokens to draft at first (window), or always (fixed)."""
    min_lookahead: Annotated[int, Field(ge=0, le=64)] = 0
    """The window controller never goes below."""
    max_lookahead: Annotated[int, Field(ge=0, le=64)] = 16
    """Nothing goes above."""
    window: Annotated[int, Field(ge=1, le=1024)] = 8
    """Rounds that the window controller averages over."""
    verification: Literal["matching", "token", "block"] = "block"
    """How drafts are judged that a draft model of this process samples, without a seed: by the
    target's own sample, or by ratios of probabilities, per token or per block. All are lossless."""
    deadline_ms: Annotated[float, Field(gt=0, le=600_000)] = 2000.0
    """A draft that takes longer is given up; the target runs on alone."""
    remote_deadline_ms: Annotated[float, Field(gt=0, le=600_000)] = 60.0
    """The same for a draft server; the first draft of a session, which reads the prompt, may take
    longer beside the running target."""
    min_confidence: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """A draft model of this process stops where the likeliest tokens so far are all right with a
    lower probability, by its own rows; 0 never stops early."""
    record_acceptance: Annotated[Path | None, BeforeValidator(file)] = None
    """File (JSONL) that acceptance is appended to, for `outrider simulate`: counts, no text. None
    records nothing."""
    record_limit: Annotated[int, Field(ge=4096), BeforeValidator(size)] = 100_000_000
    """Size that the file of record_acceptance is not grown beyond, such as 100MB."""

    @model_validator(mode="after")
    def _bounds(self) -> SpeculationSettings:
        if self.min_lookahead > self.max_lookahead:
            raise ValueError(
                f"min_lookahead is {self.min_lookahead}, above max_lookahead {self.max_lookahead}"
            )
        if self.lookahead > self.max_lookahead:
            raise ValueError(
                f"lookahead is {self.lookahead}, above max_lookahead {self.max_lookahead}"
            )
        if not all(self.drafts) or ("none" in self.drafts and len(self.drafts) > 1):
            raise ValueError(f"drafts is {', '.join(self.drafts)!r}; name drafters, or none alone")
        return self


class LimitSettings(_Section):
    """What a stranger may ask for."""

    max_running: Annotated[int, Field(ge=1, le=4096)] = 32
    """Choices decoded at a time; more wait in the queue."""
    max_queued: Annotated[int, Field(ge=0, le=100_000)] = 256
    """Requests that may wait; more are refused with 429."""
    max_body_bytes: Annotated[int, Field(ge=1024)] = 4 * 1024 * 1024
    """Largest request body."""
    max_choices: Annotated[int, Field(ge=1, le=128)] = 16
    """Largest `n`, and most prompts in one request."""
    default_max_tokens: Annotated[int, Field(ge=1)] = 256
    """Output budget of a request that names none."""
    max_logprobs: Annotated[int, Field(ge=0, le=1000)] = 20
    """Most likely tokens whose log probability a request may ask for at each output token."""
    max_logprob_entries: Annotated[int, Field(ge=1)] = 500_000
    """Log probabilities that one request may be answered with: choices times `max_tokens` times one
    more than the likely tokens asked for."""
