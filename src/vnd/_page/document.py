"""One HTML file of its parts: a skeleton, a style, JavaScript modules, facts, and compressed files.

The modules stand in it as they are. A script at its end gives each an address in memory and an import map that knows
them by name, since a page that is opened from a folder may not import the files beside it. A content security policy
forbids every request.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from vnd._files import put

ROOT = Path(str(files("vnd._page")))
SITE, RUNTIME = ROOT / "site", ROOT / "runtime"
MODULES = ("words", "files", "noise", "runtime", "answer", "picture", "classes", "codes", "masks", "page")
MODULE, WASM = "ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"


def write(path: Path, title: str, facts: Mapping[str, Any], networks: Mapping[str, bytes]) -> int:
    """Write a page; its bytes.

    Args:
        path: The file.
        title: Its title.
        facts: What it tells, plain values.
        networks: ONNX files by name.
    """
    content = document(title, facts, networks).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path, lambda part: part.write_bytes(content))
    return len(content)


def document(title: str, facts: Mapping[str, Any], networks: Mapping[str, bytes]) -> str:
    """The text of a page."""
    held = {"runtime-module": _without_map(_read(MODULE)), "runtime-wasm": (RUNTIME / f"{WASM}.gz").read_bytes()}
    held |= {f"network-{name}": gzip.compress(content, 9, mtime=0) for name, content in networks.items()}
    about = {**facts, "runtime": json.loads((RUNTIME / "runtime.json").read_text(encoding="utf-8"))["version"]}
    parts = {
        "title": html.escape(title),
        "style": _site("page.css"),
        "license": _read("LICENSE-onnxruntime.txt").decode().strip(),
        "facts": json.dumps(about, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c"),
        "files": "\n".join(
            f'<script type="text/plain" id="{html.escape(name)}">{base64.b64encode(content).decode()}</script>'
            for name, content in held.items()
        ),
        "modules": "\n".join(
            f'<script type="text/plain" data-module="{name}">\n{_site(f"{name}.mjs")}</script>' for name in MODULES
        ),
        "boot": _site("boot.js"),
    }
    page = _site("index.html")
    for name, content in parts.items():
        page = page.replace(f"<!--{name}-->", content, 1)
    return page


def _site(name: str) -> str:
    """A file of the site, which must not end the element that it is put into."""
    text = (SITE / name).read_text(encoding="utf-8")
    if name != "index.html" and ("</script" in text.lower() or "</style" in text.lower() or "<!--" in text):
        raise ValueError(f"page: {name} must not hold the end of a script or style, nor a comment of HTML")
    return text


def _read(name: str) -> bytes:
    """A file of the runtime."""
    return gzip.decompress((RUNTIME / f"{name}.gz").read_bytes())


def _without_map(module: bytes) -> bytes:
    """A module without the line that names a file of its source, which developer tools would ask for; compressed."""
    lines = [line for line in module.splitlines(keepends=True) if not line.startswith(b"//# sourceMappingURL")]
    return gzip.compress(b"".join(lines), 9, mtime=0)
