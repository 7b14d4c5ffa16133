"""Listeners that write down what they are told, and identities that need no files beside a temporary folder."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections import defaultdict

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from efhc.runtime.messages import Hello
from efhc.runtime.settings import Address, Neighbour
from efhc.runtime.sockets import SocketTransport
from efhc.runtime.wire import ModelFormat

MODELS = ModelFormat(1000, "float32")
FINGERPRINT = {"model": "svm", "parameters": "1000"}


class Node:
    """A listener that remembers."""

    def __init__(self, device, *, fingerprint=FINGERPRINT, session=1):
        self.device, self.fingerprint, self.session = device, fingerprint, session
        self.up = {}
        """By neighbour: its HELLO."""
        self.got = defaultdict(list)
        self.ends, self.refusals = [], []
        """(neighbour, reason) and (who, reason)"""
        self.moves = 0

    def hello_for(self, neighbour):
        return Hello(self.device, self.session, dict(self.fingerprint), 7)

    def connected(self, neighbour, theirs):
        assert neighbour not in self.up, "connected twice"
        self.up[neighbour] = theirs

    def disconnected(self, neighbour, reason):
        del self.up[neighbour]
        self.ends.append((neighbour, reason))

    def received(self, neighbour, message):
        assert neighbour in self.up
        self.got[neighbour].append(message)

    def moved(self, neighbour):
        self.moves += 1

    def refused(self, who, reason, neighbour=None, *, again=False):
        assert "\n" not in reason
        if again:
            return
        self.refusals.append((who, reason))

    def unreachable(self, neighbour, reason):
        self.refused(f"device {neighbour}", f"cannot connect to {reason}")

    async def until(self, condition, seconds=8.0):
        """Wait until the condition holds."""
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.01)

    def reasons(self):
        return [reason for _, reason in self.refusals]


class Authority:
    """Makes certificates, in a folder."""

    def __init__(self, folder, name="efhc"):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.key = folder, ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        extension = x509.BasicConstraints(ca=True, path_length=0)
        certificate = self._builder(self.name, self.key).add_extension(extension, critical=True)
        self.certificate = folder / "authority.pem"
        signed = certificate.sign(self.key, hashes.SHA256())
        self.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def _builder(self, subject, key):
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self.name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
        return builder.not_valid_after(now + datetime.timedelta(days=1))

    def issue(self, device, name=None):
        """Files of the certificate and the key of a device."""
        files = self.folder / f"{name or device}.pem", self.folder / f"{name or device}.key"
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.DNSName(name or f"device-{device}.efhc")])
        signed = self._builder(x509.Name([]), key).add_extension(names, critical=True).sign(self.key, hashes.SHA256())
        files[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        no_password = serialization.NoEncryption()
        form = serialization.PrivateFormat.PKCS8
        files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, no_password))
        return files


class Identity:
    """What `runtime.security` gives a transport, without its checks of files."""

    def __init__(self, authority, device, *, of=None, files=None):
        """`of` is the authority that issued it, if another one."""
        self.authority = authority
        self.files = files or (of or authority).issue(device)

    def _context(self, kind):
        context = ssl.SSLContext(kind)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(self.authority.certificate)
        context.load_cert_chain(*self.files)
        return context

    def server_context(self):
        return self._context(ssl.PROTOCOL_TLS_SERVER)

    def client_context(self):
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def server_name(self, device):
        return f"device-{device}.efhc"

    def device_of(self, certificate):
        names = [name for _, name in certificate["subjectAltName"]]
        number = names[0].removeprefix("device-").removesuffix(".efhc")
        if not number.isdigit():
            raise ValueError(f"its certificate is that of {names[0]}, which is no device")
        return int(number)


def neighbours(*devices, **addresses):
    """neighbours(1, 2, d3="127.0.0.1:7000")"""
    dialled = [Neighbour(device=int(name[1:]), address=str(address)) for name, address in addresses.items()]
    return [*(Neighbour(device=device) for device in devices), *dialled]


def transport(device, security=None, *, listen=True, models=MODELS, **options):
    return SocketTransport(device, Address("127.0.0.1", 0) if listen else None, security, models, **options)


def some_model(values=MODELS.values, seed=0, dtype="float32"):
    return np.random.default_rng(seed).standard_normal(values).astype(dtype)
