"""docs/reproduction.md names only recipes and commands that exist, and all that the paper's figures need."""

import re
from pathlib import Path

import pytest

from vnd.cli import COMMANDS
from vnd.train.config import names

PAGE = (Path(__file__).parents[1] / "docs" / "reproduction.md").read_text(encoding="utf-8")
FOLDERS = {name.partition("/")[0] for name in names() if "/" in name}
FIGURES = (
    "fig:motivation", "fig:sample_dh", "fig:overview", "fig:alpha", "fig:distill_map", "fig:distill",
    "fig:mnist_diverse", "fig:sample_tree", "fig:cifar10", "fig:tinynet", "tab:efficiency", "time", "fig:faces",
    "fig:chairs", "fig:segm", "tab:fid", "tab:is", "tab:recon_err", "fig:bn", "fig:ood", "fig:c100",
)  # fmt: skip  # the labels of the paper; the table of SN³ has none


def quoted(page: str) -> list[str]:
    """What stands in backquotes, outside of the blocks of commands."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", page, flags=re.DOTALL))


def recipes(page: str) -> set[str]:
    """The recipes that a page names, also as words of commands."""
    pattern = rf"(?:{'|'.join(sorted(FOLDERS))})/[\w-]+"
    return {found for words in quoted(page) for found in re.findall(rf"(?<![\w/]){pattern}(?![\w*-])", words)}


def rows(page: str) -> list[list[str]]:
    """The cells of the tables that end in a status, heads left out."""
    found, head = [], [""]
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and not head:
            head = cells
        elif cells and head[-1] == "status" and not set(cells[0]) <= {"-"}:
            found.append(cells)
        head = head if cells else []
    return found


def unknown(page: str) -> set[str]:
    """Names of recipes that do not exist: in full, or for `figure` the beginnings of three that do."""
    prefixes = {f"figure {name.removesuffix('-bn3')}" for name in names() if name.endswith("-bn3")}
    beginnings = {words.partition(" ")[2] for words in quoted(page) if words in prefixes}
    return recipes(page) - set(names()) - beginnings


def test_every_recipe_on_the_page_exists() -> None:
    assert len(recipes(PAGE)) > 50
    assert not unknown(PAGE)


@pytest.mark.parametrize("slip", ["`paper/cifar10-vgg11-bn4`", "`figure paper/cifar10-vgg12`", "`run fashion/bn33`"])
def test_a_recipe_that_does_not_exist_is_noticed(slip: str) -> None:
    assert len(unknown(f"{PAGE}\n{slip}\n")) == 1


def test_every_shipped_recipe_but_the_demo_is_on_the_page() -> None:
    assert set(names()) - recipes(PAGE) == {"demo"}


def test_every_figure_and_table_of_the_paper_is_on_the_page() -> None:
    assert not [label for label in FIGURES if f"`{label}`" not in PAGE]


def test_every_row_has_its_recipes_in_its_commands_and_a_status() -> None:
    found = rows(PAGE)
    assert len(found) > 30
    for row in found:
        assert re.match(r"(not run|run|planned)\b", row[-1]), row
        if row[-1] == "planned":
            continue
        assert len(row) == 4, row
        _, named, commands, _ = row
        figure = re.fullmatch(r"`figure (\S+)`", commands)
        if figure:
            assert recipes(named) == {f"{figure[1]}-{method}" for method in ("bn3", "fn3", "ibnn")}, row
        if commands.startswith("`run"):
            assert set(re.findall(r"`run (\S+)`", commands)) <= recipes(named), row


def test_every_command_on_the_page_exists() -> None:
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL))
    found = set(re.findall(r"\bvnd ([a-z]+)\b", blocks + "\n".join(quoted(PAGE))))
    assert {"train", "evaluate", "report", "sweep"} <= found <= {name.partition(" ")[0] for name in COMMANDS}
