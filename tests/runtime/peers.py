"""A listener that remembers, real certificates, and transports on loopback."""

from __future__ import annotations

import asyncio
import io
import ssl
from collections import defaultdict

import numpy as np

from efhc.runtime.certificates import issue, make_authority
from efhc.runtime.logs import Log
from efhc.runtime.node_messages import Hello
from efhc.runtime.node_settings import Address, Neighbour, Tls
from efhc.runtime.security import Security, authority_files, device_files
from efhc.runtime.sockets import SocketTransport
from efhc.runtime.status import NeighbourStatus
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
        self.statuses = defaultdict(lambda: NeighbourStatus(-1))
        self.ends, self.refusals = [], []
        """(neighbour, reason) and (who, reason)"""
        self.moves = 0

    def status_of(self, neighbour):
        return self.statuses[neighbour]

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

    def note_progress(self, neighbour):
        self.moves += 1

    def refused(self, who, reason, neighbour=None, *, again=False):
        assert "\n" not in reason
        if again:
            return
        self.refusals.append((who, reason))

    def unreachable(self, neighbour, reason):
        self.refused(f"device {neighbour}", f"cannot connect to {reason}")

    async def until(self, condition, seconds=60.0):
        """Wait until the condition holds."""
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.01)

    def reasons(self):
        return [reason for _, reason in self.refusals]


def certificates(folder, devices=range(10)):
    """Make an authority and certificates of devices in a folder, and return it."""
    make_authority(folder)
    issue(folder, devices)
    return folder


def security(folder, device):
    """Return the identity of a device with a certificate in this folder."""
    files = device_files(folder, device)
    tls = Tls(authority=authority_files(folder).certificate, certificate=files.certificate, key=files.key)
    return Security(tls, device, Log(device, io.StringIO()))


def client_context(trusts, files=None):
    """Return a context that trusts the authority of a folder and shows a certificate, or none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority_files(trusts).certificate)
    if files is not None:
        context.load_cert_chain(*files)
    return context


def neighbours(*devices, **addresses):
    """neighbours(1, 2, d3="127.0.0.1:7000")"""
    dialled = [Neighbour(device=int(name[1:]), address=str(address)) for name, address in addresses.items()]
    return [*(Neighbour(device=device) for device in devices), *dialled]


def transport(device, identity=None, *, listen=True, models=MODELS, **options):
    return SocketTransport(device, Address("127.0.0.1", 0) if listen else None, identity, models, **options)


def some_model(values=MODELS.values, seed=0, dtype="float32"):
    return np.random.default_rng(seed).standard_normal(values).astype(dtype)
