"""A part of a text file that is written by a program: what lies between two marks; all else stays as it is."""

from __future__ import annotations

from pathlib import Path

from vnd._files import put

BEGIN, END = "<!-- vnd report: begin -->", "<!-- vnd report: end -->"


def parts(path: Path) -> tuple[bytes, bytes]:
    """What lies before and after the marked part of a file; nothing where there is no file yet.

    Args:
        path: The file. It must have both marks, each once, in their order.
    """
    if not path.exists():
        return b"", b"\n"
    contents = path.read_bytes()
    begin, end = BEGIN.encode(), END.encode()
    if (contents.count(begin), contents.count(end)) != (1, 1) or contents.index(end) < contents.index(begin):
        raise ValueError(
            f"report: {path} must have the lines {BEGIN} and {END}, each once and in this order; put them where the "
            "tables shall stand"
        )
    return contents[: contents.index(begin)], contents[contents.index(end) + len(end) :]


def write(path: Path, text: str) -> None:
    """Put a text between the marks of a file, which is made if need be, in one step."""
    before, after = parts(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    middle = f"{BEGIN}\n\n{text.strip()}\n\n{END}".encode()
    put(path, lambda part: part.write_bytes(before + middle + after))
