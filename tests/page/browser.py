"""The page in a real browser, its network off: `make test-page`. Needs node, npm and Chromium.

Pages of small networks, whose numbers must be those of `vnd.runtime` and torch, and the demo's page, of which the
pictures of the documentation are made: docs/images/page-*.png and page.webp. A tool that is missing is an error that
says how to get it; nothing is left out.

    python tests/page/browser.py                   # checks; pictures into build/test-page
    python tests/page/browser.py --write           # and those into docs/images
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import made
import numpy as np
from PIL import Image

import vnd
from vnd.cli import main as command

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PLACE, IMAGES = ROOT / "build" / "test-page", ROOT / "docs" / "images"
DEMO = ROOT / "runs" / "demo"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTH, MOST = 820, 1_500_000  # of the animation: pixels across, bytes


def main() -> None:
    """Make pages and what they must show, run the browser, make the pictures."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--write", action="store_true", help="take the pictures into docs/images")
    options.add_argument("--demo", type=Path, default=DEMO, help="folder of a demo; trained if it is not there")
    given = options.parse_args()
    tools = found_tools()
    PLACE.mkdir(parents=True, exist_ok=True)
    install()
    pages = [*small_pages(), demo_page(given.demo)]
    (PLACE / "pages.json").write_text(json.dumps({"chromium": tools, "place": str(PLACE), "pages": pages}))
    subprocess.run(["node", PLACE / "browser.mjs", PLACE / "pages.json"], check=True)
    animate()
    if given.write:
        for path in [*PLACE.glob("page-*.png"), PLACE / "page.webp"]:
            shutil.copy(path, IMAGES / path.name)
            print(f"docs/images/{path.name}: {path.stat().st_size:,} bytes")


def found_tools() -> str:
    """Path of the browser; an error where it, node or npm is missing."""
    browser = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    missing = [name for name in ("node", "npm") if shutil.which(name) is None] + ([] if browser else ["chromium"])
    if missing or browser is None:
        sys.exit(f"test-page needs {', '.join(missing)}: on Debian, apt-get install nodejs npm chromium")
    return browser


def install() -> None:
    """Put playwright-core and axe-core, of the versions that package.json says, beside the checks."""
    for name in ("package.json", "browser.mjs"):
        shutil.copy(HERE / name, PLACE / name)
    held = [PLACE / "node_modules" / name / "package.json" for name in ("axe-core", "playwright-core")]
    wanted = json.loads((HERE / "package.json").read_text())["dependencies"]
    if not all(path.exists() and json.loads(path.read_text())["version"] == wanted[path.parent.name] for path in held):
        words = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]
        subprocess.run(words, cwd=PLACE, check=True)


def small_pages() -> list[dict[str, object]]:
    """Pages of small networks of each kind, and what Python says they must show."""
    pages = []
    for name, net in (
        ("local", made.classifier()), ("weight", made.classifier("weight")), ("codes", made.auto_encoder()),
        ("masks", made.segmenter()),
    ):  # fmt: skip
        path = PLACE / f"{name}.html"
        examples = made.labelled(net) if name in ("local", "weight") else None
        told = vnd.page(net, path, check=examples, validation=examples, risk=0.2, samples=made.SAMPLES)
        compared = None if name == "masks" else net
        pages.append(described(path, told, made.expected(path, PLACE / name, compared)))
    return pages


def demo_page(run: Path) -> dict[str, object]:
    """The demo's page; the demo is trained if it is not there."""
    if not (run / "best").exists():
        command(["demo", "--out", str(run)])
    path = run / "page.html"
    told = vnd.page(run, path)
    return described(path, told, made.expected(path, PLACE / "demo")) | {"pictures": True}


def described(path: Path, told: dict[str, object], stops: list[dict[str, object]]) -> dict[str, object]:
    """A page, its size and its bound, what it must show, and a picture of its size to choose."""
    facts = made.facts_of(path)
    channels, height, width = facts["image"]
    pixels = np.random.default_rng(9).integers(0, 256, (height, width, 3), np.uint8)
    if channels == 1:
        pixels[:] = pixels[:, :, :1]
    own = path.with_suffix(".png") if path.parent == PLACE else PLACE / "demo.png"
    Image.fromarray(pixels).save(own)
    bound = 5_500_000 + 1.4 * sum(told["networks"].values())  # type: ignore[attr-defined]
    flat = pixels.transpose(2, 0, 1)[:channels].ravel().tolist()
    return {
        "name": path.stem if path.parent == PLACE else "demo", "path": str(path), "kind": told["kind"],
        "bytes": path.stat().st_size, "bound": bound, "stops": stops, "own": {"path": str(own), "pixels": flat},
    }  # fmt: skip


def animate() -> None:
    """Ten seconds of the demo's page, of frames that the browser took, each with its milliseconds."""
    shots = json.loads((PLACE / "frames.json").read_text())
    frames = []
    for shot in shots:
        with Image.open(PLACE / shot["file"]) as image:
            height = round(image.height * WIDTH / image.width)
            frames.append(image.convert("RGB").resize((WIDTH, height), Image.Resampling.LANCZOS))
    times = [shot["ms"] for shot in shots]
    path = PLACE / "page.webp"
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=times, loop=0, quality=80, method=6)
    if not 8000 <= sum(times) <= 12000 or path.stat().st_size > MOST:
        sys.exit(
            f"{path}: {sum(times) / 1000:.1f} s, {path.stat().st_size:,} bytes; it must be ten seconds, in {MOST:,}"
        )
    print(f"{path.name}: {len(frames)} frames, {sum(times) / 1000:.1f} s, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
