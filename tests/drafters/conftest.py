"""What tests of several modules of this room share."""

from __future__ import annotations

import pytest

from outrider.drafters.remote import RemoteDrafter

from .draft_servers import remote_drafter


@pytest.fixture
async def remote():
    """Makes remote drafters, which are closed at the end."""
    made: list[RemoteDrafter] = []

    def make(*urls: str, **settings: object) -> RemoteDrafter:
        made.append(remote_drafter(*urls, **settings))
        return made[-1]

    yield make
    for drafter in made:
        await drafter.close()
