"""Settings: defaults < TOML file < environment < command line; validated, then frozen.

Environment variables are `OUTRIDER_<SECTION>__<NAME>`, for example `OUTRIDER_SERVER__PORT=9000`.
The cache folder is `OUTRIDER_HOME`.
"""

from outrider.config.load import Settings, load_settings
from outrider.config.sections import (
    DEFAULT_TARGET,
    DraftServerSettings,
    EngineSettings,
    LimitSettings,
    PeerSettings,
    ServerSettings,
    SpeculationSettings,
    TargetServerSettings,
)

__all__ = [
    "DEFAULT_TARGET",
    "DraftServerSettings",
    "EngineSettings",
    "LimitSettings",
    "PeerSettings",
    "ServerSettings",
    "Settings",
    "SpeculationSettings",
    "TargetServerSettings",
    "load_settings",
]
