"""What `outrider bench` measures, from its flags: one configuration, or two, ready to be asked."""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from outrider.bench import Clock, EndpointSubject, PipelineSubject, Subject
from outrider.cli.console import load_pipeline
from outrider.cli.options import build_settings
from outrider.endpoints import base_url, connect
from outrider.errors import ConfigError
from outrider.pipeline import Pipeline

__all__ = ["Configuration", "Wire", "baseline_of", "first_configuration", "open_subjects"]

_FLAGS: Final = tuple(
    name
    for name in inspect.signature(build_settings).parameters
    if name not in ("config", "server")
)
_PLAIN: Final = {"speculation.enabled": False}
_SCHEMES: Final = ("http://", "https://")
_OWN: Final = frozenset({"messages", "prompt", "stream", "stream_options", "n"})


@dataclass(frozen=True, slots=True)
class Configuration:
    """A server or a pipeline in this process, and the fields of its requests.

    Attributes:
        url, model: of a server; without a URL it is a pipeline.
        flags: the pipeline's, as `build_settings` names them; None where not given.
        fields: of every request, nested.
        label: what it is, on one line.
    """

    url: str | None
    model: str | None
    flags: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""


@dataclass(frozen=True, slots=True)
class Wire:
    """How servers are talked to. `timeout_s` is for one request, in s."""

    api_key: str | None = field(repr=False)
    timeout_s: float
    concurrency: int


def first_configuration(
    url: str | None, model: str | None, flags: Mapping[str, Any], fields: Mapping[str, Any]
) -> Configuration:
    """The one that the flags describe; `fields` may have dotted names.

    Raises:
        ConfigError: a server was given flags of a pipeline, or a pipeline those of a server.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    if url is not None and given:
        name = next(iter(given)).replace("_", "-")
        raise ConfigError(
            f"--{name} is for a pipeline in this process, and --url names a server; leave one out"
        )
    if url is None and model is not None:
        raise ConfigError(f"--model {model} is a server's; give its --url, or use --target")
    label = "in this process" if url is None else base_url(url)
    for name, value in given.items():
        label += f", {name.replace('_', '-')} {','.join(value) if name == 'draft' else value}"
    return Configuration(url, model, flags, _nested(fields), label)


def baseline_of(first: Configuration, differences: Sequence[str]) -> Configuration:
    """The second configuration: the first, but for what is given.

    Args:
        first: what it is compared with.
        differences: each `plain`, a URL, or NAME=VALUE with a NAME of url, model, a flag of the
            pipeline, or a field of the request, dotted where nested.

    Raises:
        ConfigError: one is none of these, or cannot be had here.
    """
    changes: dict[str, Any] = {}
    for given in differences:
        changes |= _change(given)
    url, model = changes.pop("url", first.url), changes.pop("model", None)
    if model is None and url == first.url:
        model = first.model
    flags = {name: changes.pop(name) for name in _FLAGS if name in changes}
    if url is None and model is not None:
        raise ConfigError(f"--baseline model={model} needs a server; write target={model} instead")
    if url is not None and flags:
        name = next(iter(flags))
        raise ConfigError(
            f"--baseline {name}={flags[name]} is set when a pipeline is built, and {url} is a "
            "server: start another with it, and give that one's URL"
        )
    if "threads" in flags and flags["threads"] != first.flags.get("threads"):
        raise ConfigError(
            f"--baseline threads={flags['threads']} cannot be had beside another number in one "
            "process; start two servers, and give their URLs"
        )
    if isinstance(flags.get("draft"), str):
        flags["draft"] = flags["draft"].split(",")
    return Configuration(
        url=url,
        model=model,
        flags={} if url is not None else {**first.flags, **flags},
        fields=_nested(changes, first.fields),
        label=f"the same, but {', '.join(differences)}",
    )


def _nested(dotted: Mapping[str, Any], under: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Dotted names as objects in objects, over those of `under`.

    Raises:
        ConfigError: a name goes through a value that is no object, or is not to be set.
    """
    fields: dict[str, Any] = json.loads(json.dumps(dict(under or {})))
    for name, value in dotted.items():
        *path, last = name.split(".")
        place: Any = fields
        for part in path:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{name} cannot be set: {part} is {place!r} already, no object")
        place[last] = value
    if own := _OWN & fields.keys():
        raise ConfigError(f"{min(own)} is the measurement's own; leave it out")
    budget = fields.get("max_tokens")
    if not isinstance(budget, int) or budget < 1:
        raise ConfigError(f"max_tokens is {budget!r}; give a number of tokens, at least 1")
    return fields


def _change(given: str) -> dict[str, Any]:
    if given == "plain":
        return dict(_PLAIN)
    if given.startswith(_SCHEMES):
        return {"url": given}
    name, equals, value = given.partition("=")
    if not name or not equals:
        raise ConfigError(
            f"--baseline {given!r} is not NAME=VALUE; write such as plain, draft=none, "
            "speculation.max_lookahead=2 or the URL of another server"
        )
    flag = name.replace("-", "_")
    if flag in ("url", "model", *_FLAGS):
        return {flag: value}
    try:
        return {name: json.loads(value)}
    except ValueError:  # a text need not be quoted
        return {name: value}


@asynccontextmanager
async def open_subjects(
    configurations: Sequence[Configuration], config: Path | None, wire: Wire, clock: Clock
) -> AsyncIterator[list[Subject]]:
    """All configurations, ready to be asked, until the block ends.

    Two that differ in nothing but their requests share one pipeline.

    Raises:
        OutriderError: a server cannot be reached, or a pipeline cannot be built.
    """
    async with AsyncExitStack() as stack:
        pipelines: list[tuple[Mapping[str, Any], Pipeline]] = []
        subjects: list[Subject] = []
        for each in configurations:
            if each.url is not None:
                connection = connect(
                    each.url,
                    api_key=wire.api_key,
                    timeout_s=wire.timeout_s,
                    concurrency=wire.concurrency,
                )
                [endpoint] = await stack.enter_async_context(connection)
                model = each.model or await endpoint.only_model()
                label = f"{model} at {each.label}" if not subjects else each.label
                subjects.append(EndpointSubject(endpoint, model, each.fields, label, clock))
                continue
            shared = [pipeline for flags, pipeline in pipelines if flags == each.flags]
            if not shared:
                shared = [await load_pipeline(build_settings(config, **each.flags))]
                stack.push_async_callback(shared[0].close)
                pipelines.append((each.flags, shared[0]))
            label = f"{shared[0].info.model_id} {each.label}" if not subjects else each.label
            subjects.append(PipelineSubject(shared[0], each.fields, label, clock))
        yield subjects
