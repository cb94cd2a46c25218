"""Trained networks that come with the package: `load_pretrained` needs no file and no connection.

Each lies in a folder of its name: what `vnd.save` writes, and `card.json`. `scripts/ship.py` makes one of a run.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from vnd._manifest import checksum
from vnd._text import nearest, one_line
from vnd.pretrained.from_pixels import FromPixels, plain_of
from vnd.serialization import load

__all__ = ["FromPixels", "load_pretrained"]

CARD = "card.json"
ROOT = Path(str(files(__name__)))


def names() -> list[str]:
    """The networks that come with the package."""
    return sorted(path.parent.name for path in ROOT.glob(f"*/{CARD}"))


def load_pretrained(name: str) -> FromPixels:
    """Load a trained network that comes with the package, on the CPU, in evaluation mode.

    It is a nested network that takes images as they are, floats between 0 and 1, and normalises them itself. `classes`
    names what it tells apart. `card` says what it was trained on and by, and what was measured at the widths that its
    BatchNorm has statistics for: `card["results"]`.

        net = load_pretrained("cifar10-bn3-small")
        prediction = vnd.predict(net, images, width=0.5)  # images (B, 3, 32, 32), pixels between 0 and 1
        [net.classes[index] for index in prediction.probs.argmax(1)]

    To load one that you have saved: `vnd.load(folder, model=net.plain())`.

    Args:
        name: An unknown name is answered with those there are.

    >>> net = load_pretrained("cifar10-bn3-small")
    >>> net.classes[:3]
    ('airplane', 'automobile', 'bird')
    """
    known = names()
    if name not in known:
        listed = ", ".join(known) or "none"
        raise ValueError(f"load_pretrained: unknown network {name!r}{nearest(str(name), known)} Known: {listed}")
    return read(ROOT / name)


def read(folder: Path) -> FromPixels:
    """Load a network with its card; what is damaged is refused in one line."""
    said = read_card(folder)
    net = load(folder, model=plain_of(said))
    assert isinstance(net, FromPixels)
    return net


def read_card(folder: Path) -> dict[str, Any]:
    """What a card says, checked against its own checksum."""
    path = folder / CARD
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        if said["checksum"] != checksum(said):
            raise ValueError("its checksum is not the one that was saved")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"load_pretrained: {path} is damaged; install vnd again: {one_line(error)}") from None
    return dict(said)
