"""Certificates of nodes: an authority of the user's own signs one certificate per device.

A certificate says one thing: whoever has its key is `device-3.efhc`. Keys are written with mode 0600 and are never
overwritten. A running node does not need this module; `import` it after `base.extras.require("node")`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from efhc.base.errors import EfhcError, InputError
from efhc.base.inputs import read_bytes
from efhc.base.saving import write_safely, writing
from efhc.runtime.security import DOMAIN, CertificateFiles, authority_files, device_files, name_of

AUTHORITY_DAYS, DEVICE_DAYS = 3650, 365
EARLIER = timedelta(days=1)
"""A certificate is valid from this long before it was made, because the clocks of devices differ."""


def make_authority(folder: Path, days: int = AUTHORITY_DAYS, now: datetime | None = None) -> CertificateFiles:
    """Write an authority that can sign certificates of devices and of nobody else, valid for `days` from `now` on.

    Raises `EfhcError` if the folder has one already.
    """
    files = authority_files(folder)
    for file in files:
        if file.exists():
            raise EfhcError(f"{file} exists already and is not overwritten; `efhc certs issue` signs with it")
    now = now or datetime.now(UTC)
    until = _later(now, days)
    key = _write_new_key(files.key)
    # Each authority has a name of its own, so that a certificate of another one is refused for that very reason.
    name = _common_name(f"efhc authority {os.urandom(4).hex()}")
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.NameConstraints([x509.DNSName(DOMAIN)], None), critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_safely(files.certificate, certificate.public_bytes(serialization.Encoding.PEM))
    return files


def issue(
    folder: Path, devices: Iterable[int], days: int = DEVICE_DAYS, now: datetime | None = None
) -> list[CertificateFiles]:
    """Write a certificate for each device, signed by the authority in `folder`. Returns where they are.

    A device whose key is in the folder keeps it, so that a renewed certificate is one file to copy. Raises `EfhcError`
    if there is no authority or if a file cannot be used, and `InputError` if the authority expires before `days`.
    """
    authority, signing_key = _read_authority(folder)
    now = now or datetime.now(UTC)
    until = _later(now, days)
    if until > (end := authority.not_valid_after_utc):
        left = max((end - now).days, 0)
        raise InputError("--days", days, f"at most {left}, the days until the authority in {folder} expires")
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key())
    issued = []
    for device in devices:
        files, name = device_files(folder, device), name_of(device)
        public_key = (_read_key(files.key) if files.key.exists() else _write_new_key(files.key)).public_key()
        certificate = (
            x509.CertificateBuilder(authority.subject, _common_name(name), public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(max(now - EARLIER, authority.not_valid_before_utc))
            .not_valid_after(until)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(_EITHER_END, critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(identifier, critical=False)
            .sign(signing_key, hashes.SHA256())
        )
        write_safely(files.certificate, certificate.public_bytes(serialization.Encoding.PEM))
        issued.append(files)
    return issued


_Kind = TypeVar("_Kind", bound=x509.ExtensionType)


class Facts(NamedTuple):
    """What a certificate says."""

    name: str
    issuer: str
    valid_from: datetime
    valid_until: datetime
    is_authority: bool
    fingerprint: str
    """SHA-256 of the certificate, in hexadecimal digits."""


def read_facts(path: Path) -> Facts:
    """Return what a certificate says. Raises `InputError` if the file holds none."""
    certificate = _read_certificate(path)
    alternative = _extension(certificate, x509.SubjectAlternativeName)
    constraints = _extension(certificate, x509.BasicConstraints)
    names = alternative.get_values_for_type(x509.DNSName) if alternative else []
    return Facts(
        ", ".join(names) or certificate.subject.rfc4514_string(),
        certificate.issuer.rfc4514_string(),
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        constraints is not None and constraints.ca,
        certificate.fingerprint(hashes.SHA256()).hex(),
    )


def _extension(certificate: x509.Certificate, kind: type[_Kind]) -> _Kind | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _read_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    files = authority_files(folder)
    if missing := [file for file in files if not file.exists()]:
        raise EfhcError(f"{missing[0]} is not there; make an authority with `efhc certs init --out {folder}`")
    certificate, key = _read_certificate(files.certificate), _read_key(files.key)
    if certificate.public_key() != key.public_key():
        raise EfhcError(f"{files.key} does not belong to {files.certificate}; put back the one that was made with it")
    return certificate, key


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(read_bytes(path, "certificate"))
    except ValueError:
        raise InputError("certificate", f"{path} (something else)", "a certificate in PEM format") from None


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    allowed = "a private key of an elliptic curve in PEM format, without a password, as `efhc certs` writes it"
    try:
        key = serialization.load_pem_private_key(read_bytes(path, "key"), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError("key", f"{path} (something else)", allowed) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError("key", f"{path} (another kind of key)", allowed)
    return key


def _write_new_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return a new private key, and write it so that nobody but its owner can read it, from its first byte on."""
    key = ec.generate_private_key(ec.SECP256R1())
    content = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    return key


def _later(now: datetime, days: int) -> datetime:
    try:
        return now + timedelta(days=days)
    except OverflowError:
        raise InputError("--days", days, "a number of days that ends before the year 10000") from None


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


_EITHER_END = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
"""A node is the server of the connections that it accepts and the client of those that it makes."""


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
