"""Who may read the page. Law: only the page itself gets an answer, and only to requests that are listed.

- Other methods than GET and HEAD are refused: there is nothing to change.
- On a loopback address, the Host header must name loopback. A page of a stranger whose name was pointed at 127.0.0.1
  (DNS rebinding) sends its own name.
- The browser names the site of a request (Sec-Fetch-Site, Origin). Other sites may link to the page, but get no data.
- With a token, requests without it get nothing.
- No answer has a CORS header, so no script of another origin can read one.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from efhc.base.errors import InputError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

AUTO, SHORTEST_TOKEN = "auto", 16
TOKEN = re.compile(rf"[A-Za-z0-9_-]{{{SHORTEST_TOKEN},}}")
"""What is the same in an address, in a cookie and in a header."""
NONCE = "nonce"
"""Where the nonce of a request's scripts and styles is in the scope of the request."""

HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def policy(nonce: str) -> str:
    """Return the Content-Security-Policy: scripts, styles and data of this server alone, within no other page."""
    return (
        f"default-src 'none'; script-src 'self' 'nonce-{nonce}'; style-src 'self' 'nonce-{nonce}'; connect-src 'self'; "
        "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def is_loopback(host: str) -> bool:
    """Return whether an address or name is of this machine alone. Names other than localhost are not looked up."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def choose_token(host: str, token: str | None) -> str | None:
    """Return the token that is required, a new one for "auto". Raises `InputError` for an open address without one."""
    if token == AUTO:
        return secrets.token_urlsafe(24)
    if token is not None and not TOKEN.fullmatch(token):
        got = f"{len(token)} characters" + ("" if len(token) < SHORTEST_TOKEN else ", some of which are not allowed")
        raise InputError("--token", got, f"{AUTO}, or at least {SHORTEST_TOKEN} of A-Z, a-z, 0-9, _ and -")
    if token is None and not is_loopback(host):
        allowed = f"{host} with --token {AUTO}, or 127.0.0.1, which `ssh -L` makes reachable from elsewhere"
        raise InputError("--host", f"{host} without --token: others could read the runs", allowed)
    return token


@dataclass(frozen=True)
class Guards:
    """What a request must have."""

    host: str
    """The address that the server listens on."""
    port: int
    token: str | None = None

    @property
    def cookie(self) -> str:
        """The name of the cookie that holds the token. Cookies do not know ports, so the name has it."""
        return f"efhc-watch-{self.port}"

    def refusal(self, request: Request) -> tuple[int, str] | None:
        """Return the status and the reason with which a request is refused; None if it is allowed."""
        if request.method not in ("GET", "HEAD"):
            return 405, "only GET: this page changes nothing"
        if not self._names_us(request):
            return 421, "this server does not answer to that name; open it by its loopback address"
        if not _is_from_our_page(request):
            return 403, "the request comes from another site"
        if self.token is not None and not any(map(self.is_token, self._given(request))):
            return 401, "a token is needed: open the address that `efhc watch` printed"
        return None

    def _names_us(self, request: Request) -> bool:
        hosts = request.headers.getlist("host")
        if len(hosts) != 1:
            return False
        if not is_loopback(self.host):  # then there is a token, which no page of a stranger has
            return True
        try:  # any port, because `ssh -L` may have another one
            return is_loopback(urlsplit(f"//{hosts[0]}").hostname or "")
        except ValueError:
            return False

    def is_token(self, given: str) -> bool:
        """Return whether this is the token, in a time that does not depend on how much of it is right."""
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())

    def _given(self, request: Request) -> list[str]:
        kind, _, bearer = request.headers.get("authorization", "").partition(" ")
        found = [bearer] if kind.lower() == "bearer" else []
        if is_the_page(request) and "token" in request.query_params:
            found.append(request.query_params["token"])
        if self.cookie in request.cookies:
            found.append(request.cookies[self.cookie])
        return found

    def set_cookie(self) -> str:
        """Return the header that keeps the token in the browser: for this server alone, and never for a script."""
        return f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"


def is_the_page(request: Request) -> bool:
    """Return whether a request is for the page itself, which holds no data."""
    return request.url.path == "/"


def _is_from_our_page(request: Request) -> bool:
    """Return whether a request comes from our page or the user. Other sites may link to the page: it holds no data."""
    site = request.headers.get("sec-fetch-site", "none")
    leads_here = is_the_page(request) and request.headers.get("sec-fetch-mode") == "navigate"
    if site not in ("same-origin", "none") and not leads_here:
        return False
    origin = request.headers.get("origin")
    return origin is None or origin == f"http://{request.headers.get('host')}"


class GuardMiddleware:
    """Refuses what the guards do not allow, and puts the headers on every answer."""

    def __init__(self, app: ASGIApp, guards: Guards) -> None:
        self._app, self._guards = app, guards

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return  # a web socket is closed: there is none here
        from starlette.requests import Request
        from starlette.responses import PlainTextResponse

        scope[NONCE] = secrets.token_urlsafe(16)
        headers = HEADERS | {"Content-Security-Policy": policy(scope[NONCE])}
        added = [(name.lower().encode(), value.encode()) for name, value in headers.items()]

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *added]
            await send(message)

        app, refusal = self._app, self._guards.refusal(Request(scope))
        if refusal is not None:
            status, reason = refusal
            app = PlainTextResponse(f"{reason}\n", status, {"Allow": "GET, HEAD"} if status == 405 else None)
        await app(scope, receive, send_guarded)
