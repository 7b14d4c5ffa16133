"""The identity of a node: TLS 1.3, in which both ends show a certificate of one authority. There is no way around it.

A node checks its own files by a handshake with itself: it refuses at its start what its neighbours would refuse.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from efhc.base.errors import EfhcError, InputError
from efhc.base.inputs import read_bytes
from efhc.runtime.logs import Log
from efhc.runtime.node_settings import Address, NodeSettings, Tls

DOMAIN = "efhc"
SOON = 14 * 86400.0
"""A certificate that expires within this many seconds is worth a line in the log."""

ISSUED = "a certificate that `efhc certs issue` made with the key of that authority"

_NAME = re.compile(rf"device-(0|[1-9][0-9]{{0,8}})\.{DOMAIN}")
_NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python does not name."""


class CertificateFiles(NamedTuple):
    """A certificate and the private key that belongs to it."""

    certificate: Path
    key: Path


def authority_files(folder: Path) -> CertificateFiles:
    """Return where `efhc certs init` puts the authority of a folder."""
    return CertificateFiles(folder / "authority.pem", folder / "authority.key")


def device_files(folder: Path, device: int) -> CertificateFiles:
    """Return where `efhc certs issue` puts the certificate and the key of a device."""
    return CertificateFiles(folder / f"device-{device}.pem", folder / f"device-{device}.key")


def name_of(device: int) -> str:
    """Return the name that the certificate of a device has."""
    return f"device-{device}.{DOMAIN}"


def security_of(settings: NodeSettings, *, insecure: bool, log: Log) -> Security | None:
    """Return what protects the connections of a node; None for plain text, which only `insecure` on loopback allows.

    Raises `InputError` if nothing would protect them, or if the files of `tls` cannot be used.
    """
    if insecure:
        neighbours = {f"neighbours.{i}.address": one.address for i, one in enumerate(settings.neighbours)}
        for field, text in ({"listen": settings.listen} | neighbours).items():
            if text is None:
                continue
            if not Address.of(text).is_loopback:
                raise InputError(field, f"{text} with --insecure", "addresses of this machine alone, such as 127.0.0.1")
        return None
    if settings.tls is None:
        made = "`efhc certs init` and `efhc certs issue` make them"
        raise InputError("tls", "nothing", f"a table with authority, certificate and key ({made})")
    return Security(settings.tls, settings.device, log)


class Security:
    """The identity of one node, and the contexts of its connections. It is not shared between threads.

    A renewed certificate counts from the next connection on: accepted ones look for it by themselves. Get the
    context anew for each one that is made.
    """

    def __init__(self, tls: Tls, device: int, log: Log) -> None:
        """Raises `InputError`, one line that says what to do, if the files cannot be used."""
        self._tls, self._device, self._log = tls, device, log
        self._seen = _versions(tls)
        self._identity = self._load()
        self._warn_if_it_expires_soon()

    @property
    def expires(self) -> float:
        """When the node's certificate expires, as a Unix time."""
        self.refresh()
        return self._identity.expires

    def server_context(self) -> ssl.SSLContext:
        """Return the context of connections that the node accepts; a server may keep it as long as it listens."""
        self.refresh()
        return self._identity.server

    def client_context(self) -> ssl.SSLContext:
        """Return the context of a connection that the node makes; `server_hostname` is the `name_of` the device."""
        self.refresh()
        return self._identity.client

    def refresh(self) -> None:
        """Take up files that were changed. If they cannot be used, the node keeps the old ones and logs why."""
        if (now := _versions(self._tls)) == self._seen:
            return
        self._seen = now
        try:
            self._identity = self._load()
        except EfhcError as error:
            self._log(
                "certificate not renewed", level="error", reason=str(error), old_until=_day(self._identity.expires)
            )
        else:
            self._log("certificate renewed", until=_day(self._identity.expires))
            self._warn_if_it_expires_soon()

    def _load(self) -> _Identity:
        identity = _load(self._tls, self._device)
        identity.server.sni_callback = self._use_present_context
        return identity

    def _use_present_context(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Let a connection that begins now have the certificate of now, whichever context its server was given."""
        connection.context = self.server_context()

    def _warn_if_it_expires_soon(self) -> None:
        if (left := self._identity.expires - time.time()) < SOON:
            self._log("certificate expires soon", level="warning", days=round(left / 86400, 1))


def device_of(certificate: Mapping[str, Any] | None) -> int:
    """Return whose certificate `getpeercert()` returned. Raises `ValueError` if it is no device's."""
    names = [text for kind, text in (certificate or {}).get("subjectAltName", ()) if kind == "DNS"]
    devices = [int(match[1]) for name in names if (match := _NAME.fullmatch(name))]
    if len(devices) != 1:
        shown = ", ".join(names)[:100] or "nobody"
        raise ValueError(f"a certificate of {shown}, where one of a single device is needed, such as {name_of(3)}")
    return devices[0]


class _Identity(NamedTuple):
    server: ssl.SSLContext
    client: ssl.SSLContext
    expires: float


def _load(tls: Tls, device: int) -> _Identity:
    """Return the contexts of these files. Raises `InputError` if a neighbour would refuse them."""
    for field, path in (("tls.authority", tls.authority), ("tls.certificate", tls.certificate)):
        _check_holds_certificates(field, path)
    _check_is_private(tls.key)
    shown = _own_certificate(tls)
    try:
        named = device_of(shown)
    except ValueError as error:
        raise InputError("tls.certificate", f"{tls.certificate}, {error}", f"one of {name_of(device)}") from None
    if named != device:
        given = f"{tls.certificate}, the certificate of device {named}"
        raise InputError("tls.certificate", given, f"that of device {device}, which this node is")
    server, client = _context(ssl.PROTOCOL_TLS_SERVER, tls), _context(ssl.PROTOCOL_TLS_CLIENT, tls)
    try:
        _handshake(server, client, name_of(device))
    except ssl.SSLError as error:  # such as an authority that has expired
        reason = getattr(error, "verify_message", None) or error.reason
        raise InputError("tls", f"{tls.certificate}, which neighbours would refuse ({reason})", ISSUED) from None
    return _Identity(server, client, ssl.cert_time_to_seconds(shown["notAfter"]))


def _check_holds_certificates(field: str, path: Path) -> None:
    read_bytes(path, field)  # it raises what a missing file deserves
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError:
        raise InputError(field, f"{path} (it holds no certificate)", "a certificate in PEM format") from None


def _check_is_private(key: Path) -> None:
    read_bytes(key, "tls.key")
    mode = stat.S_IMODE(key.stat().st_mode)
    if mode & 0o077:
        given = f"{key}, which not only its owner may use (mode {mode:04o})"
        raise InputError("tls.key", given, f"a file of mode 0600: chmod 600 {key}")


def _context(protocol: int, tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = protocol == ssl.PROTOCOL_TLS_CLIENT
    context.hostname_checks_common_name = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # no connection is resumed: each shows certificates that are valid now
    context.load_verify_locations(tls.authority)
    try:
        context.load_cert_chain(tls.certificate, tls.key, password=_refuse_passwords)
    except _HasPassword:
        raise InputError("tls.key", f"{tls.key}, which has a password", "a key without one, of mode 0600") from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            given = f"{tls.key}, which does not belong to {tls.certificate}"
            raise InputError("tls.key", given, "the key that was issued with the certificate") from None
        raise InputError("tls.key", f"{tls.key} (it holds no key)", "a private key in PEM format") from None
    return context


class _HasPassword(Exception):
    pass


def _refuse_passwords() -> str:
    """Stand in for OpenSSL's own question at the terminal, which would wait for ever."""
    raise _HasPassword


def _own_certificate(tls: Tls) -> dict[str, Any]:
    """Return the certificate that neighbours see. Raises `InputError` if the authority did not issue it for now."""
    server, client = _context(ssl.PROTOCOL_TLS_SERVER, tls), _context(ssl.PROTOCOL_TLS_CLIENT, tls)
    client.check_hostname = False
    for context in (server, client):  # what it says is only seen if it is accepted: name and time are looked at later
        context.verify_flags |= _NO_CHECK_TIME
    try:
        shown = _handshake(server, client)
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", None) or error.reason
        given = f"{tls.certificate}, which {tls.authority} did not issue for a node ({reason})"
        raise InputError("tls.certificate", given, ISSUED) from None
    start, end = (ssl.cert_time_to_seconds(shown[name]) for name in ("notBefore", "notAfter"))
    now = time.time()
    if now > end:
        given = f"{tls.certificate}, which expired on {_day(end)}"
        raise InputError("tls.certificate", given, "one that is valid; `efhc certs issue` renews it")
    if now < start:
        given = f"{tls.certificate}, which is not valid before {_day(start)}, while the clock says {_day(now)}"
        raise InputError("tls.certificate", given, "one that is valid; or set the clock of this machine")
    return shown


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str | None = None) -> dict[str, Any]:
    """Return the certificate that the client showed the server, once both have accepted the other's."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    dialling = client.wrap_bio(to_client, to_server, server_hostname=name)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    for end in (dialling, answering, dialling, answering):  # TLS 1.3 needs three flights
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    return answering.getpeercert() or {}


def _versions(tls: Tls) -> list[tuple[int, ...]]:
    """Return what changes when a file is replaced or written."""
    versions: list[tuple[int, ...]] = []
    for path in (tls.authority, tls.certificate, tls.key):
        try:
            facts = os.stat(path)  # noqa: PTH116 - it runs for each connection
            versions.append((facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns))
        except OSError:
            versions.append(())
    return versions


def _day(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


# Errors of sockets and of TLS, as one line for people

STRANGER_SECONDS = 5.0
"""Seconds within which a new connection must be open."""

ONE_AUTHORITY = "all devices need certificates of one `efhc certs init`"
OTHER_AUTHORITY = frozenset({7, 18, 19, 20, 21})
"""OpenSSL's codes for a certificate that the known authority has not signed: its signature is of another key, it is
signed by itself or by an unknown authority, its issuer is not found."""

TLS_REASONS = {
    "HTTP_REQUEST": "it spoke HTTP instead of TLS",
    "WRONG_VERSION_NUMBER": "it did not speak TLS",
    "UNSUPPORTED_PROTOCOL": "its TLS is older than 1.3",
    "VERSION_TOO_LOW": "its TLS is older than 1.3",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the other end refuses TLS 1.3",
    "TLSV1_ALERT_UNKNOWN_CA": f"the other end does not know the authority of this node's certificate; {ONE_AUTHORITY}",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the other end requires a certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the other end refuses this node's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the other end says that this node's certificate has expired",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the other end refuses this node's certificate",
}
"""By OpenSSL's name of the reason."""


def reason_of(error: BaseException) -> str:
    """Return why a connection could not be made, or broke."""
    if isinstance(error, ssl.SSLError) and error.reason:
        return _reason_of_tls(error)
    if (isinstance(error, TimeoutError) and error.errno is None) or "SSL handshake is taking longer" in str(error):
        return f"it has not said who it is within {STRANGER_SECONDS:g} s"
    if isinstance(error, asyncio.CancelledError):
        return str(error) or "this node stops"
    if isinstance(error, ConnectionResetError) and error.errno is None:  # asyncio's, if a handshake is cut short
        return "the other end ended the handshake: it may not accept this node's certificate"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


def _reason_of_tls(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in OTHER_AUTHORITY:
            return f"its certificate was issued by another authority; {ONE_AUTHORITY}"
        return f"its certificate is refused: {error.verify_message}"
    return TLS_REASONS.get(error.reason, f"TLS failed: {error.reason.lower().replace('_', ' ')}")
