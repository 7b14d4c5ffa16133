"""efhc certs: an authority, the certificates that it issues to devices, and their contents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from efhc.base.errors import InputError
from efhc.base.extras import require
from efhc.cli.terminal import argument, option, plain

MOST = 10_000
"""The largest number of certificates that one command issues."""

app = typer.Typer(
    name="certs",
    help="Make and show the certificates of devices (needs efhc[node]).",
    no_args_is_help=True,
)

Folder = Annotated[Path, option("FOLDER", "The folder of the certificates.", "--out", "--certs")]


@app.command()
def init(
    folder: Folder = Path("certs"),
    days: Annotated[int, option("N", "Number of days that the authority is valid.", min=1)] = 3650,
) -> None:
    """Make an authority that can issue certificates.

    Copy FOLDER/authority.pem to every device. Keep FOLDER/authority.key where no device can read it: whoever has it can
    make certificates of any device.
    """
    require("node")
    from efhc.runtime.certificates import make_authority

    files = make_authority(folder, days)
    print(f"{plain(files.certificate)}: copy it to every device")
    print(f"{plain(files.key)}: secret; keep it here, and keep a copy in a safe place")


@app.command()
def issue(
    devices: Annotated[list[str], option("N", "Devices: 3, 0-9 or 1,4,7. May be repeated.", "--device")],
    folder: Folder = Path("certs"),
    days: Annotated[int, option("N", "Number of days that the certificates are valid.", min=1)] = 365,
) -> None:
    """Issue or renew certificates of devices.

    Device 3 gets FOLDER/device-3.pem and FOLDER/device-3.key. A key that exists is kept. To renew a certificate, issue
    it again and copy device-3.pem to the device: a running node uses it without a restart.
    """
    require("node")
    from efhc.runtime import certificates

    for files in certificates.issue(folder, _numbers(devices), days):
        until = certificates.read_facts(files.certificate).valid_until
        print(f"{plain(files.certificate)}, {plain(files.key)} (secret): valid until {until:%Y-%m-%d}")


@app.command()
def show(files: Annotated[list[Path], argument("FILE", "Certificates in PEM format.")]) -> None:
    """Show certificates: name, issuer, validity and fingerprint."""
    require("node")
    from datetime import UTC, datetime

    from efhc.runtime.certificates import read_facts

    for file in files:
        facts = read_facts(file)
        days = (facts.valid_until - datetime.now(UTC)).days
        left = f"{days} days left" if days >= 0 else "EXPIRED"
        print(plain(file))
        print(f"  {'authority' if facts.is_authority else 'name':<12} {plain(facts.name)}")
        print(f"  {'issuer':<12} {plain(facts.issuer)}")
        print(f"  {'valid':<12} {facts.valid_from:%Y-%m-%d} to {facts.valid_until:%Y-%m-%d} ({left})")
        print(f"  {'SHA-256':<12} {facts.fingerprint}")


def _numbers(texts: list[str]) -> list[int]:
    """Return the devices of texts such as "3", "0-9" and "1,4,7", each once, in ascending order."""
    found: set[int] = set()
    for text in (part.strip() for whole in texts for part in whole.split(",")):
        first, dash, last = text.partition("-")
        if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in (first, last if dash else first)):
            raise InputError("--device", text, "numbers from 0, such as 3, 0-9 or 1,4,7")
        start, end = int(first), int(last) if dash else int(first)
        if end < start or end - start >= MOST:
            raise InputError("--device", text, f"a range from lower to higher, of at most {MOST} devices")
        found.update(range(start, end + 1))
    return sorted(found)
