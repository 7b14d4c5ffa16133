"""The meaning of errors of sockets and of TLS, as one line for people."""

from __future__ import annotations

import asyncio
import ssl

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
