"""`vnd page`: a trained run as one HTML file that anyone can play with."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from rich.console import Console

from vnd._page import page as write
from vnd._text import say, short


def page(
    run: Path,
    out: Path | None = None,
    serve: bool = False,
    port: int = 8000,
    images: bool = False,
    risk: float = 0.05,
    samples: int | None = None,
) -> None:
    """Write a page that runs a trained run's network in the browser, at every size: one HTML file, no requests.

    A slider over the sizes of the run's evaluation, pictures, and what the network says of them. Of an auto-encoder the
    slider is the length of the code, of a probabilistic UNet that of the latent of its masks. It shows pictures that
    come with vnd, and those that a visitor chooses.

    Example: vnd page runs/demo --out page.html

    Args:
        run: Folder of the run.
        out: The file; RUN/page.html if not given.
        serve: Then serve it to this machine, until Ctrl-C. The page needs no server.
        port: Where it is served, on 127.0.0.1; 0 for a free one.
        images: Show ten of the run's test images too: they are in the file, for everyone who has it.
        risk: Largest share of wrong answers among those that a classifier gives; it withholds the others.
        samples: Draws of the weights for an answer, or masks of a picture; as many as the run's evaluation has, else 6,
            if not given.
    """
    if not 0 <= port <= 65535:
        raise ValueError(f"page: port must lie in 0 … 65535; got {port}")
    path = out or run / "page.html"
    with Console(stderr=True).status("opening the run") as status:
        told = write(run, path, images=images or None, risk=risk, samples=samples, tell=status.update)
    say(f"page: {path.resolve()} ({short(told['bytes'], 'B')}); open it in a browser, or send it to someone")
    if serve:
        with server(path, port) as serving:
            say(f"serving it at http://127.0.0.1:{serving.server_port}; Ctrl-C ends that")
            serving.serve_forever()


def server(path: Path, port: int) -> ThreadingHTTPServer:
    """A server of one page, for this machine alone."""
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), partial(_Page, path.read_bytes()))
    except OSError as error:
        raise ValueError(f"page: port {port} cannot be used, give another --port: {error}") from None


class _Page(BaseHTTPRequestHandler):
    """The page at /, and nothing else."""

    def __init__(self, content: bytes, *args: object) -> None:
        self.content = content
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Answer with the page."""
        if self.path != "/":
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""
