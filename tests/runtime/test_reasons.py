"""Two nodes whose certificates are of different authorities: what each end says, over a real TLS handshake."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from efhc.runtime.certificates import issue, make_authority
from efhc.runtime.logs import Log
from efhc.runtime.reasons import reason_of
from efhc.runtime.security import Security, authority_files, device_files
from efhc.runtime.settings import Tls

ANOTHER = "its certificate was issued by another authority; all devices need certificates of one `efhc certs init`"
ENDED = "the other end ended the handshake: it may not accept this node's certificate"


def security(authority: Path, own: Path, device: int) -> Security:
    """A device with a certificate of the folder `own`, which trusts the authority of `authority`."""
    files = device_files(own, device)
    tls = Tls(authority=authority_files(authority).certificate, certificate=files.certificate, key=files.key)
    return Security(tls, device, Log(device, level="error"))


async def reasons(server: Security, client: Security) -> list[str]:
    """What the accepting and the dialling end say about a connection between devices 0 and 1."""
    loop, said = asyncio.get_running_loop(), ["", ""]
    over = asyncio.Event()

    class End(asyncio.Protocol):
        def connection_lost(self, error: Exception | None) -> None:
            said[1] = reason_of(error) if error is not None else "closed"
            over.set()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)

        async def accept() -> None:
            accepted, _ = await loop.sock_accept(listening)
            try:
                await loop.connect_accepted_socket(asyncio.Protocol, accepted, ssl=server.server_context())
            except OSError as error:
                said[0] = reason_of(error)

        async def dial() -> None:
            host, port = listening.getsockname()
            try:
                await loop.create_connection(
                    End, host, port, ssl=client.client_context(), server_hostname=client.server_name(0)
                )
            except OSError as error:
                said[1] = reason_of(error)
                over.set()

        async with asyncio.timeout(10):
            await asyncio.gather(accept(), dial())
            await over.wait()
    return said


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    for name in ("first", "second"):
        make_authority(tmp_path / name, 30)
        issue(tmp_path / name, [0, 1], 20)
    return [tmp_path / "first", tmp_path / "second"]


def test_two_authorities_are_named_as_the_cause_at_the_end_that_sees_it(folders: list[Path]):
    first, second = folders
    said = asyncio.run(reasons(security(first, first, 0), security(second, second, 1)))
    assert said == [ENDED, ANOTHER]


def test_a_certificate_of_another_authority_is_named_at_the_end_that_accepts(folders: list[Path]):
    first, second = folders
    both = first / "both"
    both.mkdir()
    authorities = [authority_files(folder).certificate.read_text() for folder in folders]
    authority_files(both).certificate.write_text("".join(authorities))
    said = asyncio.run(reasons(security(first, first, 0), security(both, second, 1)))
    assert said[0] == ANOTHER
