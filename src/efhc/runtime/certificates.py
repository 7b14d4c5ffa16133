"""Certificates of nodes: an authority of the user's own signs one certificate per device.

A certificate states one thing: the owner of its key is `device-3.efhc`. Keys are written with mode 0600 and are never
overwritten. A running node does not need this module; `import` it after `base.extras.require("node")`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

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
    """Write an authority that can sign certificates of devices and no others, valid for `days` from `now` on.

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
        _builder(name, name, key.public_key(), is_authority=True)
        .not_valid_before(now - EARLIER)
        .not_valid_after(until)
        .add_extension(x509.NameConstraints([x509.DNSName(DOMAIN)], None), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
    )
    _sign(certificate, key, files.certificate)
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
            _builder(authority.subject, _common_name(name), public_key, is_authority=False)
            .not_valid_before(max(now - EARLIER, authority.not_valid_before_utc))
            .not_valid_after(until)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(x509.ExtendedKeyUsage(_EITHER_END), critical=False)
            .add_extension(identifier, critical=False)
        )
        _sign(certificate, signing_key, files.certificate)
        issued.append(files)
    return issued


def _builder(
    issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, is_authority: bool
) -> x509.CertificateBuilder:
    """Return what the certificates of an authority and of a device have in common."""
    constraints = x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None)
    usage = x509.KeyUsage(
        digital_signature=not is_authority, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=is_authority, crl_sign=is_authority, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip
    return (
        x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
        .add_extension(constraints, critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _sign(certificate: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, path: Path) -> None:
    write_safely(path, certificate.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


class Facts(NamedTuple):
    """The contents of a certificate."""

    name: str
    issuer: str
    valid_from: datetime
    valid_until: datetime
    is_authority: bool
    fingerprint: str
    """SHA-256 of the certificate, in hexadecimal digits."""


def read_facts(path: Path) -> Facts:
    """Return the contents of a certificate. Raises `InputError` if the file holds none."""
    certificate = _read_certificate(path)
    extensions = [each.value for each in certificate.extensions]
    alternatives = [each for each in extensions if isinstance(each, x509.SubjectAlternativeName)]
    names = [name for each in alternatives for name in each.get_values_for_type(x509.DNSName)]
    return Facts(
        ", ".join(names) or certificate.subject.rfc4514_string(),
        certificate.issuer.rfc4514_string(),
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        any(isinstance(each, x509.BasicConstraints) and each.ca for each in extensions),
        certificate.fingerprint(hashes.SHA256()).hex(),
    )


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
        raise InputError("certificate", f"{path} (it holds no certificate)", "a certificate in PEM format") from None


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    allowed = "a private key of an elliptic curve in PEM format, without a password, as `efhc certs` writes it"
    try:
        key = serialization.load_pem_private_key(read_bytes(path, "key"), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError("key", f"{path} (it holds no such key)", allowed) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError("key", f"{path} (another kind of key)", allowed)
    return key


def _write_new_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return a new private key, and write it so that only its owner can read it, from its first byte on."""
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


_EITHER_END = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
"""A node is the server of the connections that it accepts and the client of those that it makes."""
