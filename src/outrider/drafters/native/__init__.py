"""The suffix drafter's C sources; see suffix.h."""

__all__: list[str] = []
