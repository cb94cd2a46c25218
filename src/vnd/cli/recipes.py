"""`vnd recipes`: list the recipes that come with the package."""

from itertools import groupby
from pathlib import Path

from vnd._files import write_json
from vnd._text import nearest, say
from vnd.train.config import names, parse, read


def recipes(only: str = "", out: Path | None = None) -> None:
    """List the recipes that come with the package, one line each.

    Those in paper/ have the settings that were published, the others ours.

    Example: vnd recipes --only cifar10

    Args:
        only: Those with this in their names: cifar10, paper/svhn, vgg11, ibnn.
        out: Write the same, with all settings, to this JSON file.
    """
    known = names()
    matching = [name for name in known if only.lower() in name]
    if not matching:
        parts = {part for name in known for part in (*name.split("/"), *name.replace("/", "-").split("-"))}
        raise ValueError(f"recipes: only: no recipe has {only!r} in its name{nearest(only, parts | {*known})}")
    settings = {name: read(name)[0] for name in matching}
    for _, shelf in groupby(matching, key=lambda name: (Path(name).parent, settings[name].get("data", {}).get("name"))):
        together = list(shelf)
        width = max(map(len, together))
        for name in together:
            say(f"{name:{width}}  {settings[name]['about']}")
        say("")
    say("train one with: vnd train RECIPE")
    if out is not None:
        write_json(out, {name: parse(name).to_dict() for name in matching})
