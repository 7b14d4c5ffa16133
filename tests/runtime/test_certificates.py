"""Certificates are what OpenSSL and neighbours accept, and no private key is ever overwritten or readable by others."""

from __future__ import annotations

import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from efhc.base.errors import EfhcError, InputError
from efhc.runtime.certificates import issue, make_authority, read_facts
from efhc.runtime.security import authority_files, device_files


def test_an_authority_issues_what_openssl_accepts_for_both_ends(tmp_path: Path):
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl command")
    make_authority(tmp_path)
    issue(tmp_path, [0, 12])
    for device in (0, 12):
        for purpose in ("sslclient", "sslserver"):
            name = f"device-{device}.efhc"
            words = ["verify", "-x509_strict", "-purpose", purpose, "-verify_hostname", name]
            files = ["-CAfile", str(authority_files(tmp_path).certificate)]
            done = subprocess.run(
                [openssl, *words, *files, str(device_files(tmp_path, device).certificate)],
                capture_output=True,
                text=True,
                check=False,
                timeout=30,
            )
            assert done.returncode == 0, done.stderr


def test_keys_are_private_and_certificates_are_not(tmp_path: Path):
    files = [make_authority(tmp_path / "certs"), *issue(tmp_path / "certs", [3])]
    for pair in files:
        assert pair.key.stat().st_mode & 0o777 == 0o600
        assert pair.certificate.stat().st_mode & 0o444 == 0o444
        assert "PRIVATE" not in pair.certificate.read_text()


def test_the_facts_of_a_certificate(tmp_path: Path):
    make_authority(tmp_path, days=100)
    issue(tmp_path, [3], days=30)
    facts, authority = read_facts(tmp_path / "device-3.pem"), read_facts(tmp_path / "authority.pem")
    assert facts.name == "device-3.efhc"
    assert facts.issuer == authority.name == authority.issuer
    assert (facts.is_authority, authority.is_authority) == (False, True)
    now = datetime.now(UTC)
    assert abs(facts.valid_until - now - timedelta(days=30)) < timedelta(minutes=5)
    assert abs(authority.valid_until - now - timedelta(days=100)) < timedelta(minutes=5)
    assert facts.valid_from < now
    assert len(facts.fingerprint) == 64
    assert facts.fingerprint != authority.fingerprint


def test_an_authority_is_never_overwritten(tmp_path: Path):
    files = make_authority(tmp_path)
    before = [file.read_bytes() for file in files]
    with pytest.raises(EfhcError, match=r"authority\.pem exists already"):
        make_authority(tmp_path)
    files.certificate.unlink()
    with pytest.raises(EfhcError, match=r"authority\.key exists already"):
        make_authority(tmp_path)
    assert files.key.read_bytes() == before[1]


def test_to_renew_is_to_issue_again_with_the_same_key(tmp_path: Path):
    make_authority(tmp_path)
    (files,) = issue(tmp_path, [3], days=1)
    key, first = files.key.read_bytes(), read_facts(files.certificate)
    issue(tmp_path, [3], days=20)
    assert files.key.read_bytes() == key
    assert read_facts(files.certificate).valid_until > first.valid_until


@pytest.mark.parametrize("missing", ["authority.pem", "authority.key"])
def test_no_authority(tmp_path: Path, missing: str):
    make_authority(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(EfhcError, match=rf"{missing} is not there; make an authority with `efhc certs init"):
        issue(tmp_path, [0])


def test_what_is_no_certificate_or_key(tmp_path: Path):
    make_authority(tmp_path)
    (tmp_path / "junk.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    for path in (tmp_path / "junk.pem", tmp_path / "authority.key"):
        with pytest.raises(InputError, match=r"^certificate: cannot use .*. Use a certificate in PEM format"):
            read_facts(path)
    with pytest.raises(InputError, match="does not exist"):
        read_facts(tmp_path / "nowhere.pem")
    (tmp_path / "device-5.key").write_text("hello")
    with pytest.raises(InputError, match=r"^key: cannot use .*device-5\.key"):
        issue(tmp_path, [5])
    assert (tmp_path / "device-5.key").read_text() == "hello"


def test_a_key_of_another_authority(tmp_path: Path):
    make_authority(tmp_path / "a")
    make_authority(tmp_path / "b")
    shutil.copy(tmp_path / "a" / "authority.key", tmp_path / "b" / "authority.key")
    with pytest.raises(EfhcError, match="does not belong to"):
        issue(tmp_path / "b", [0])


def test_no_certificate_outlives_its_authority(tmp_path: Path):
    make_authority(tmp_path, days=10)
    with pytest.raises(InputError, match=r"^--days: cannot use 11. Use at most (9|10), the days"):
        issue(tmp_path, [0], days=11)
    with pytest.raises(InputError, match="year 10000"):
        issue(tmp_path, [0], days=10**9)
    assert not list(tmp_path.glob("device-*"))
