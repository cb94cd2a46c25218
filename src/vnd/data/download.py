"""Downloading one file of known length and SHA-256 over http, in as many pieces as the network makes of it.

What has arrived is kept in a part file, and the next connection asks for the rest. The file is accepted if its length
and SHA-256 are those of the catalogue, and by nothing else.
"""

import hashlib
import os
from collections.abc import Callable
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO
from urllib import request
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from vnd.data.catalogue import Remote

CHUNK = 2**18
TRIES = 5
TIMEOUT = 30.0  # seconds without a byte
PASSING = (408, 425, 429, 500, 502, 503, 504)  # answers that another try may better
PAGES = ("text/html", "application/xhtml+xml")


class RefusedError(OSError):
    """What arrived is not the file, and none of it may be kept."""


def download(
    remote: Remote,
    part: Path,
    *,
    again: str,
    by_hand: str,
    show: Callable[[int], object],
    pause: Callable[[float], object],
) -> None:
    """Bring a part to its full length over as many connections as it takes, and check it.

    Args:
        remote: The file.
        part: Where it is written; what is there already is continued. Removed if it turns out wrong.
        again: The command to give once more, for the errors.
        by_hand: How to do without it, for the errors.
        show: Called with the number of bytes that are there.
        pause: Called with the seconds to wait before another try.
    """
    trouble = ""
    for attempt in range(TRIES):
        if length(part) > remote.size:  # left by something else
            part.unlink()
        if length(part) == remote.size:
            break
        if attempt:
            pause(2.0 ** (attempt - 1))
        try:
            trouble = _receive(remote, part, show)
        except RefusedError:
            part.unlink(missing_ok=True)
            raise
        except HTTPError as error:
            error.close()
            trouble = f"{error.code} {_one_line(error.reason)}"
            if error.code == 416:  # the server has no more than we have, and we have too little: start over
                part.unlink(missing_ok=True)
            elif error.code not in PASSING:
                raise OSError(f"fetch: {remote.url} answers {trouble}; if it stays so, {by_hand}") from None
        except URLError as error:
            trouble = _one_line(error.reason)
            if not attempt:
                raise OSError(
                    f"fetch: cannot reach {urlsplit(remote.url).hostname} ({trouble}); with a network run {again} "
                    f"again, or {by_hand}"
                ) from None
    if length(part) != remote.size:
        raise OSError(
            f"fetch: {remote.url} broke off {TRIES} times ({trouble}); {length(part):,} of {remote.size:,} bytes are "
            f"in {part}, and {again} continues from there"
        )
    show(remote.size)
    with part.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != remote.sha256:
        part.unlink()
        raise RefusedError(
            f"fetch: {remote.url} must have SHA-256 {remote.sha256}; got {found}; it was removed; run {again} "
            f"again; if it stays so, {by_hand}"
        )


def length(path: Path) -> int:
    """Bytes of a file; 0 if there is none."""
    return path.stat().st_size if path.exists() else 0


def _receive(remote: Remote, part: Path, show: Callable[[int], object]) -> str:
    """Append to the part what one connection brings; returns why it ended."""
    start = length(part)
    headers = {"User-Agent": "vnd", "Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        response = _opener().open(request.Request(_checked(remote.url), headers=headers), timeout=TIMEOUT)
    except (URLError, RefusedError):
        raise
    except (OSError, HTTPException) as error:  # cut off before the answer's headers
        return _one_line(error)
    with response:
        start = _position(remote, start, response.status, response.headers)
        data, trouble = _read(response)
        if not start and data.lstrip()[:1] == b"<":  # before the part is touched: a login page does not cost it
            raise _web_page(remote)
        try:
            with part.open("r+b" if start else "wb") as file:
                file.seek(start)
                while data:
                    start += len(data)
                    if start > remote.size:
                        raise RefusedError(f"fetch: {remote.url} must have {remote.size:,} bytes; got more; removed")
                    file.write(data)
                    show(start)
                    data, trouble = _read(response)
                file.flush()
                os.fsync(file.fileno())
        except RefusedError:
            raise
        except OSError as error:
            raise OSError(f"fetch: {part} cannot be written: {_one_line(error)}; what is there is kept") from error
    return trouble


def _read(response: IO[bytes]) -> tuple[bytes, str]:
    """The next bytes of an answer, or none and the reason; a cut is no error, since what has arrived is good."""
    try:
        return response.read(CHUNK), "the connection was closed"
    except (OSError, HTTPException) as error:
        return b"", _one_line(error)


def _position(remote: Remote, start: int, status: int, headers: HTTPMessage) -> int:
    """Where the bytes of an answer begin in the file, if its headers are those of the file."""
    if "Content-Type" in headers and headers.get_content_type() in PAGES:
        raise _web_page(remote)
    if status == 206:
        place, _, total = headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
        if place.partition("-")[0] != str(start) or total not in ("*", str(remote.size)):
            got = headers.get("Content-Range")
            raise RefusedError(
                f"fetch: {remote.url} must send bytes {start}- of {remote.size}; got {got}; part removed"
            )
        return start
    size = headers.get("Content-Length", str(remote.size))  # 200: the whole file, whatever was asked for
    if status != 200 or size != str(remote.size):
        raise RefusedError(f"fetch: {remote.url} must have {remote.size:,} bytes; got {size} (status {status})")
    return 0


def _web_page(remote: Remote) -> OSError:
    return OSError(f"fetch: {remote.url} must send the file; got a web page: is there a login or a blocked network?")


class _Redirects(request.HTTPRedirectHandler):
    """Follows redirects to http and https only."""

    def redirect_request(
        self, req: request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> request.Request | None:
        try:
            return super().redirect_request(req, fp, code, msg, headers, _checked(newurl))
        except RefusedError:
            fp.close()
            raise


def _checked(url: str) -> str:
    if urlsplit(url).scheme not in ("http", "https"):
        raise RefusedError(f"fetch: only http and https are fetched from; got {url}")
    return url


def _opener() -> request.OpenerDirector:
    """The opener of urllib with its proxies, but without its handlers of file:, ftp: and data:."""
    opener = request.OpenerDirector()
    for handler in (
        request.ProxyHandler(),
        request.HTTPHandler(),
        request.HTTPSHandler(),
        request.HTTPDefaultErrorHandler(),
        _Redirects(),
        request.HTTPErrorProcessor(),
        request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
