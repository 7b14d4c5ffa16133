"""Who is let in and who is not, with real certificates over real sockets; and what a node refuses to start with."""

from __future__ import annotations

import io
import json
import shutil
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from efhc.base.errors import InputError
from efhc.runtime import certificates
from efhc.runtime.certificates import issue, make_authority
from efhc.runtime.logs import Log
from efhc.runtime.node_settings import Neighbour, NodeSettings, Tls
from efhc.runtime.security import Security, authority_files, device_files, device_of, security_of

SILENT = Log(0, io.StringIO())


def events(stream: io.StringIO) -> list[str]:
    return [json.loads(line)["event"] for line in stream.getvalue().splitlines()]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority with devices 0 and 3, and in `foreign` another one with device 3."""
    folder = tmp_path_factory.mktemp("certs")
    for each in (folder, folder / "foreign"):
        make_authority(each)
        issue(each, [0, 3])
    return folder


@pytest.fixture
def certs(made: Path, tmp_path: Path) -> Path:
    """A copy of those that a test may change."""
    return shutil.copytree(made, tmp_path / "certs")


def tls_of(folder: Path, device: int, authority: Path | None = None) -> Tls:
    files = device_files(folder, device)
    known = authority or authority_files(folder).certificate
    return Tls(authority=known, certificate=files.certificate, key=files.key)


def make(folder: Path, device: int, **known: Any) -> Security:
    return Security(tls_of(folder, device, **known), device, SILENT)


def connect(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> tuple[int | str, int | str]:
    """Whom the server and the client saw, or why they saw nobody."""
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as threads:
        listening.settimeout(5)
        server_saw = threads.submit(_answer, listening, server)
        with socket.create_connection(listening.getsockname(), timeout=5) as plain:
            try:
                with client.wrap_socket(plain, server_hostname=name) as connection:
                    assert connection.version() == "TLSv1.3"
                    connection.recv(1)  # in TLS 1.3, a server that refuses does so after the client's handshake
                    client_saw: int | str = device_of(connection.getpeercert())
            except OSError as error:
                client_saw = str(error)
        return server_saw.result(5), client_saw


def _answer(listening: socket.socket, context: ssl.SSLContext) -> int | str:
    accepted, _ = listening.accept()
    accepted.settimeout(5)
    try:
        with context.wrap_socket(accepted, server_side=True) as connection:
            connection.send(b"!")
            return device_of(connection.getpeercert())
    except OSError as error:
        return str(error)


def met(server: Security, client: ssl.SSLContext, name: str = "device-0.efhc") -> tuple[int | str, int | str]:
    return connect(server.server_context(), client, name)


def test_two_devices_of_one_authority_see_one_another(certs: Path):
    assert met(make(certs, 0), make(certs, 3).client_context()) == (3, 0)


def test_no_session_can_be_resumed(certs: Path):
    assert make(certs, 0).server_context().num_tickets == 0


@pytest.mark.parametrize(
    "names",
    [[], ["device-3.efhc", "device-4.efhc"], ["device-03.efhc"], ["device-٣.efhc"], ["*.efhc"], ["device-3.efhc.org"]],
)
def test_a_certificate_that_names_no_single_device(names: list[str]):
    with pytest.raises(ValueError, match="where one of a single device is needed"):
        device_of({"subjectAltName": tuple(("DNS", name) for name in names)})


def test_further_names_of_a_device_do_not_matter():
    names = ("DNS", "hall-3.example"), ("DNS", "device-3.efhc"), ("IP Address", "192.0.2.3")
    assert device_of({"subjectAltName": names}) == 3
    with pytest.raises(ValueError, match="nobody"):
        device_of(None)


# What a node does not start with


def refusal(tls: Tls, device: int = 3) -> InputError:
    with pytest.raises(InputError) as raised:
        Security(tls, device, SILENT)
    assert "\n" not in str(raised.value)
    return raised.value


@pytest.mark.parametrize("name", ["authority", "certificate", "key"])
def test_a_missing_or_garbled_file_is_named(certs: Path, name: str):
    path = getattr(tls_of(certs, 3), name)
    path.write_text("-----BEGIN CERTIFICATE-----\nnot base64\n")
    assert refusal(tls_of(certs, 3)).field == f"tls.{name}"
    path.unlink()
    error = refusal(tls_of(certs, 3))
    assert (error.field, "does not exist" in str(error)) == (f"tls.{name}", True)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601])
def test_a_key_that_others_can_use(certs: Path, mode: int):
    key = device_files(certs, 3).key
    key.chmod(mode)
    error = refusal(tls_of(certs, 3))
    assert (error.field, f"{mode:04o}" in str(error), f"chmod 600 {key}" in str(error)) == ("tls.key", True, True)


def test_a_key_with_a_password_is_refused_instead_of_asked_for(certs: Path):
    from cryptography.hazmat.primitives import serialization as form

    key = device_files(certs, 3).key
    read = form.load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(
        read.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.BestAvailableEncryption(b"secret"))
    )
    assert refusal(tls_of(certs, 3)).field == "tls.key"


@pytest.mark.parametrize("case", ["key of another", "foreign", "of another device", "authority"])
def test_files_that_are_not_those_of_this_device(certs: Path, case: str):
    authority, tls = authority_files(certs), tls_of(certs, 3)
    given, device, field = {
        "key of another": (tls.model_copy(update={"key": device_files(certs, 0).key}), 3, "tls.key"),
        "foreign": (tls_of(certs / "foreign", 3, authority.certificate), 3, "tls.certificate"),
        "of another device": (tls, 4, "tls.certificate"),
        "authority": (tls.model_copy(update={"certificate": authority.certificate, "key": authority.key}), 3,
                      "tls.certificate"),
    }[case]  # fmt: skip
    assert refusal(given, device).field == field


def test_an_authority_can_name_devices_only(certs: Path, monkeypatch: pytest.MonkeyPatch):
    """Whoever trusts it, for whatever reason, need not fear that it issues a certificate of a web site."""
    monkeypatch.setattr(certificates, "name_of", "device-{}.example.org".format)
    issue(certs, [3])
    assert "permitted subtree violation" in str(refusal(tls_of(certs, 3)))


@pytest.mark.parametrize(("days", "word"), [(-400, "expired on"), (400, "is not valid before")])
def test_a_certificate_of_another_time(tmp_path: Path, days: int, word: str):
    then = datetime.now(UTC) + timedelta(days=days)
    make_authority(tmp_path, now=then)
    issue(tmp_path, [3], now=then)
    error = refusal(tls_of(tmp_path, 3))
    assert (error.field, word in str(error)) == ("tls.certificate", True)


def test_an_authority_that_has_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Our certificates end before their authority does; those that somebody else issued may not."""
    make_authority(tmp_path, days=10, now=datetime.now(UTC) - timedelta(days=20))
    expired, key = certificates._read_authority(tmp_path)
    start, end = expired.not_valid_before_utc, expired.not_valid_after_utc + timedelta(days=999)
    lasting = SimpleNamespace(subject=expired.subject, not_valid_before_utc=start, not_valid_after_utc=end)
    monkeypatch.setattr(certificates, "_read_authority", lambda folder: (lasting, key))
    issue(tmp_path, [3], days=100)
    assert "neighbours would refuse (certificate has expired)" in str(refusal(tls_of(tmp_path, 3)))


# Renewal


def test_a_renewed_certificate_is_taken_up_and_a_broken_one_is_not(certs: Path):
    lines = io.StringIO()
    security = Security(tls_of(certs, 0), 0, Log(0, lines))
    neighbour = make(certs, 3)
    first, until = security.server_context(), security.expires  # a server keeps the context
    assert events(lines) == []

    issue(certs, [0], days=30)
    assert connect(first, neighbour.client_context(), "device-0.efhc") == (3, 0)
    assert security.expires < until - 300 * 86400  # it was valid for a year
    assert events(lines) == ["certificate renewed"]

    files = device_files(certs, 0)
    good = files.certificate.read_bytes()
    files.certificate.write_bytes(good[:100])
    assert met(security, neighbour.client_context()) == (3, 0)
    assert met(security, neighbour.client_context()) == (3, 0)
    assert events(lines)[1:] == ["certificate not renewed"]  # said once
    assert "tls.certificate: cannot use " in lines.getvalue()
    files.certificate.unlink()
    assert met(security, neighbour.client_context()) == (3, 0)
    files.certificate.write_bytes(good)
    security.refresh()
    assert events(lines)[-1] == "certificate renewed"


def test_a_certificate_that_expires_soon_is_mentioned(certs: Path):
    issue(certs, [0], days=5)
    lines = io.StringIO()
    Security(tls_of(certs, 0), 0, Log(0, lines))
    assert events(lines) == ["certificate expires soon"]


# With and without protection


def settings(**fields: Any) -> NodeSettings:
    return NodeSettings(**{"experiment": Path("e.toml"), "device": 0, "listen": "127.0.0.1:7700"} | fields)


def test_without_tls_there_is_no_start():
    with pytest.raises(InputError, match=r"^tls"):
        security_of(settings(), insecure=False, log=SILENT)


@pytest.mark.parametrize("address", ["127.0.0.1:7701", "localhost:7701", "[::1]:7701", None])
def test_insecure_is_for_loopback(address: str | None):
    assert security_of(settings(neighbours=[Neighbour(device=1, address=address)]), insecure=True, log=SILENT) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"listen": "0.0.0.0:7700"},
        {"listen": "[::]:7700"},
        {"listen": "some-name:7700"},
        {"neighbours": [Neighbour(device=1, address="192.0.2.1:7700")]},
    ],
)
def test_insecure_beyond_loopback_is_refused(fields: dict[str, Any]):
    with pytest.raises(InputError, match="--insecure"):
        security_of(settings(**fields), insecure=True, log=SILENT)


def test_with_tls_there_is_protection(certs: Path):
    assert isinstance(security_of(settings(tls=tls_of(certs, 0)), insecure=False, log=SILENT), Security)
