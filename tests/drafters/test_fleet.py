"""Several draft servers, ones that come later, and ones that do not fit."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from outrider.config import Settings
from outrider.drafters import TableDrafter, create_drafter
from outrider.drafters.remote import RemoteDrafter
from outrider.errors import ConfigError, DraftFailed, VocabularyMismatch
from outrider.models import TableModel
from tests.servers.drafting import description, serving, until

from .draft_servers import DESCRIPTION, V, answer, scripted, target, view

pytestmark = pytest.mark.anyio


@pytest.fixture
def model(write_table) -> TableModel:
    return TableModel.load(write_table("draft", order=2, vocab_size=V, context_length=64))


@dataclass
class Certificate:
    cert: Path
    key: Path


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    """For 127.0.0.1, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "draft")])
    now = datetime.now(UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    found = Certificate(tmp_path / "cert.pem", tmp_path / "key.pem")
    found.cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    found.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return found


async def test_another_vocabulary_is_refused_with_both_names(remote) -> None:
    async with scripted() as server:
        drafter = remote(server.url, fingerprint="other")
        with pytest.raises(VocabularyMismatch, match=r"'fake' with vocabulary ids:5.*'target'"):
            await drafter.describe()


async def test_a_server_that_is_not_there_at_the_start_is_taken_in_when_it_comes(
    model, remote
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    drafter = remote(f"http://127.0.0.1:{port}")
    info = await drafter.describe()
    assert (info.name, info.context_length) == (f"127.0.0.1:{port}", None)
    with pytest.raises(DraftFailed, match="cut off"):
        await drafter.propose(view([0, 1]), 4)
    async with serving(TableDrafter(model), description(model), port=port):
        breaker = drafter._fleet.servers[0].breaker
        breaker._open_until = 0.0
        with pytest.raises(DraftFailed):
            await drafter.propose(view([0, 1]), 4)
        await until(lambda: breaker.refusal() is None)
        assert len(await drafter.propose(view([0, 1]), 4)) == 4
        assert await drafter.describe() is info  # constant while it lives
        await drafter.close()


async def test_one_that_comes_later_with_another_vocabulary_stays_cut_off(remote) -> None:
    async with scripted(describe=answer({}, status=500), propose=answer({"tokens": [1]})) as server:
        drafter = remote(server.url)
        await drafter.describe()
        breaker = drafter._fleet.servers[0].breaker
        server.describe = answer(DESCRIPTION | {"vocab_fingerprint": "other"})
        for _ in range(2):
            breaker._open_until = 0.0
            with pytest.raises(DraftFailed):
                await drafter.propose(view([0, 1]), 4)
            await until(lambda: not breaker._probing)
        assert breaker.refusal() is not None
        assert server.drafts == 0
        await drafter.close()


async def test_sessions_are_spread_over_servers_and_stay_where_they_are(remote) -> None:
    async with (
        scripted(propose=answer({"tokens": [1]})) as a,
        scripted(propose=answer({"tokens": [1]})) as b,
    ):
        drafter = remote(a.url, b.url)
        assert (await drafter.describe()).name == f"{a.url[7:]}+{b.url[7:]}"
        for _ in range(3):
            for name in ("x", "y"):
                await drafter.propose(view([0, 1], name), 1)
        assert (a.drafts, b.drafts) == (3, 3)
        assert len({msgspec.msgpack.decode(body)["session_id"] for body in a.bodies}) == 1
        await drafter.close()


async def test_when_a_server_fails_its_sessions_go_on_at_another_with_all_their_tokens(
    remote,
) -> None:
    async with (
        scripted(propose=answer({"tokens": [1]})) as a,
        scripted(propose=answer({"tokens": [2]})) as b,
    ):
        drafter = remote(a.url, b.url)
        await drafter.describe()
        await drafter.propose(view([0, 1]), 1)
        a.propose = None
        with pytest.raises(DraftFailed):
            await drafter.propose(view([0, 1, 2]), 1)
        assert (await drafter.propose(view([0, 1, 2]), 1)).token_ids == (2,)
        sent = msgspec.msgpack.decode(b.bodies[-1])
        assert (sent["tokens"], sent["prompt_length"]) == ([0, 1, 2], 2)
        await drafter.close()


async def test_servers_of_one_drafter_have_to_serve_the_same_model(remote) -> None:
    other = answer(DESCRIPTION | {"model_hash": "i", "name": "another"})
    async with scripted() as a, scripted(describe=other) as b:
        with pytest.raises(ConfigError, match="different models, 'fake' and 'another'"):
            await remote(a.url, b.url).describe()


async def test_the_token_is_shown_and_asked_for(model, remote) -> None:
    peers = {"peers": {"token": "secret"}}
    async with serving(TableDrafter(model), description(model), **peers) as server:
        drafter = remote(server.url, **peers)
        await drafter.describe()
        assert len(await drafter.propose(view([0, 1]), 2)) == 2
        await drafter.close()


async def test_over_tls_the_certificate_is_checked(model, remote, certificate) -> None:
    peers = {"cert_file": certificate.cert, "key_file": certificate.key}
    async with serving(TableDrafter(model), description(model), peers=peers) as server:
        stranger = remote(server.url)
        await stranger.describe()
        with pytest.raises(DraftFailed, match="cut off"):
            await stranger.propose(view([0, 1]), 2)
        drafter = remote(server.url, peers={"ca_file": certificate.cert})
        await drafter.describe()
        assert len(await drafter.propose(view([0, 1]), 2)) == 2
        await drafter.close()


async def test_a_server_that_restarts_does_not_cost_a_draft(model, remote) -> None:
    """A connection from the pool that was closed meanwhile is replaced in the same call."""
    async with serving(TableDrafter(model), description(model)) as server:
        drafter = remote(server.url)
        await drafter.describe()
        await drafter.propose(view([0, 1]), 2)
        port = int(server.url.rpartition(":")[2])
    async with serving(TableDrafter(model), description(model), port=port):
        assert len(await drafter.propose(view([0, 1, 2]), 2)) == 2
        await drafter.close()


@pytest.mark.parametrize(
    "spec", ["http://", "http://a:1/x?y=1", "http://u:p@a:1", "http://a:1+b:2"]
)
def test_what_is_no_address_is_refused(spec) -> None:
    with pytest.raises(ConfigError, match="address"):
        create_drafter(spec, target(), None, Settings())


def test_an_address_makes_a_remote_drafter() -> None:
    made = create_drafter("http://127.0.0.1:1+https://b:2", target(), None, Settings())
    assert isinstance(made, RemoteDrafter)


def test_a_file_of_certificates_that_is_none_is_named(tmp_path) -> None:
    settings = Settings(peers={"ca_file": tmp_path / "none.pem"})
    with pytest.raises(ConfigError, match=r"none\.pem"):
        create_drafter("https://a:1", target(), None, settings)
