"""Which Temporal server is meant: Temporal's standard environment configuration, as everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.core.errors import InputError, TransientError
from everstep.workers import runtime

pytestmark = [pytest.mark.server]

PROFILES = """
[profile.training]
address = "{address}"
namespace = "default"

[profile.locked]
address = "{address}"
api_key = "nobody's"

[profile.keys]
address = "{address}"
[profile.keys.tls]
client_cert_path = "{folder}/client.pem"
client_key_path = "{folder}/client.key"
"""


@pytest.fixture
def profiles(temporal_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file with profiles, and nothing else that names a server; the server's address."""
    file = tmp_path / "temporal.toml"
    file.write_text(PROFILES.format(address=temporal_address, folder=tmp_path))
    for name in ("TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "TEMPORAL_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(file))
    return temporal_address


async def test_a_profile_names_the_server(profiles: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_PROFILE", "training")
    client = await runtime.connect(10.0)
    assert client.service_client.config.target_host == profiles
    # The environment wins over the file.
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "another")
    assert (await runtime.connect(10.0)).namespace == "another"


async def test_a_key_is_never_sent_in_clear(profiles: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a key, TLS is on: a server without it is none."""
    monkeypatch.setenv("TEMPORAL_PROFILE", "locked")
    with pytest.raises(TransientError, match="no Temporal server answers"):
        await runtime.connect(1.0)


@pytest.mark.parametrize(
    ("profile", "said"), [("keys", "client"), ("nosuch", "nosuch")], ids=["no key", "no profile"]
)
async def test_what_is_not_there_is_named(
    profile: str, said: str, profiles: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_PROFILE", profile)
    with pytest.raises(InputError, match=said):
        await runtime.connect(1.0)


@pytest.mark.usefixtures("profiles")
async def test_no_server_at_all_is_said_so() -> None:
    with pytest.raises(InputError, match="TEMPORAL_ADDRESS: is not set"):
        await runtime.connect(1.0)
