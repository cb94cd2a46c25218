"""Downloads and unpacking: what the catalogue describes arrives whole, or nothing does and one line says why."""

import fcntl
import gzip
import hashlib
import io
import json
import socket
import stat
import struct
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from vnd.data import fetch as fetching
from vnd.data.fetch import fetch, unpack
from vnd.data.registry import DATASETS, DataSet, Remote

Answer = Callable[["Handler", bytes], None]


class Handler(BaseHTTPRequestHandler):
    """Answers each request as the next of the server's answers does; the last one stays."""

    server: "Server"

    def do_GET(self) -> None:
        self.server.ranges.append(self.headers.get("Range"))
        answers = self.server.answers
        (answers.pop(0) if len(answers) > 1 else answers[0])(self, self.server.files.get(self.path[1:], b""))

    def send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/octet-stream", "Content-Length": str(len(body))}.items():
            headers.setdefault(name.replace("-", "_"), value)
        for name, value in headers.items():
            if value:
                self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def start(self) -> int:
        return int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").removesuffix("-"))

    def log_message(self, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.answers: list[Answer] = [serve]
        self.ranges: list[str | None] = []

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"

    def handle_error(self, *args: object) -> None:  # the client may hang up
        pass


def serve(handler: Handler, body: bytes) -> None:
    start = handler.start()
    if start:
        content = f"bytes {start}-{len(body) - 1}/{len(body)}"
        handler.send(206, body[start:], Content_Range=content)
    else:
        handler.send(200, body)


def cut(count: int) -> Answer:
    """Promises all and sends only so many bytes."""

    def answer(handler: Handler, body: bytes) -> None:
        start, size = handler.start(), len(body)
        ranges = {"Content_Range": f"bytes {start}-{size - 1}/{size}"} if start else {}
        handler.send(206 if start else 200, body[start : start + count], Content_Length=str(size - start), **ranges)

    return answer


def whole(handler: Handler, body: bytes) -> None:
    handler.send(200, body)


def slam(handler: Handler, body: bytes) -> None:
    handler.close_connection = True


def status(code: int) -> Answer:
    return lambda handler, body: handler.send(code, b"no")


def redirect(place: str) -> Answer:
    return lambda handler, body: handler.send(302, b"", Location=place)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def tar_of(files: dict[str, bytes], mode: Any = "w:gz") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def zip_of(files: dict[str, bytes], **options: Any) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", **options) as packed:
        for name, data in files.items():
            packed.writestr(name, data)
    return out.getvalue()


NOISE = bytes(hashlib.shake_256(b"noise").digest(3_000_000))
FILES = {"set/train.bin": NOISE, "set/below/test.bin": b"test", "set/empty": b""}
PACKED = tar_of(FILES)


def entry(*remotes: Remote, **changes: Any) -> DataSet:
    fields: dict[str, Any] = {"name": "toy", "about": "toy", "licence": "none", "read": lambda folder, split: None}
    fields |= {"folder": "toy-folder", "channels": 1, "size": 8, "num_classes": 2, "remotes": remotes}
    return DataSet(**(fields | {"manual": "put toy.bin into toy-folder", "embedded": False} | changes))


def remote_of(server: Server, name: str, data: bytes, kind: str = "tar", **changes: Any) -> Remote:
    server.files[name] = data
    digest = hashlib.sha256(data).hexdigest()
    return Remote(**({"url": server.url(name), "sha256": digest, "size": len(data), "unpack": kind} | changes))


@pytest.fixture
def toy(server: Server) -> DataSet:
    return entry(remote_of(server, "set.tar.gz", PACKED))


def get(dataset: DataSet, root: Path) -> str:
    """Fetch without waiting; what was said."""
    said = io.StringIO()
    assert (
        fetch(dataset, root, console=Console(file=said, width=200), pause=lambda seconds: None) == root / "toy-folder"
    )
    return said.getvalue()


def fails(dataset: DataSet, root: Path, words: str, kind: type[Exception] = OSError) -> str:
    """Fetch in vain: one line with these words, nothing unpacked, no lock left."""
    with pytest.raises(kind, match=words) as caught:
        get(dataset, root)
    line = str(caught.value)
    assert "\n" not in line
    assert not (root / "toy-folder").exists()
    assert {x.suffix for x in root.glob(".downloads/*")} <= {".part"}
    return line


def part(root: Path, name: str = "set.tar.gz") -> Path:
    return root / ".downloads" / f"toy-{name}.part"


def leave(root: Path, data: bytes) -> None:
    part(root).parent.mkdir(parents=True)
    part(root).write_bytes(data)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(x.relative_to(folder)): x.read_bytes() for x in sorted(folder.rglob("*")) if x.is_file()}


def check_whole(root: Path) -> None:
    found = tree(root)
    stamp = json.loads(found.pop("toy-folder/.complete"))
    assert found == {name.replace("set/", "toy-folder/"): data for name, data in FILES.items()}
    assert stamp["sha256"] == {"set.tar.gz": hashlib.sha256(PACKED).hexdigest()}
    assert (stamp["files"], stamp["bytes"]) == (3, 3_000_004)
    assert not (root / ".downloads").exists()


# Downloads


def test_a_download_is_unpacked_into_its_folder_and_a_second_one_does_nothing(server, toy, tmp_path):
    get(toy, tmp_path)
    check_whole(tmp_path)
    assert server.ranges == [None]
    assert "nothing to download" in get(toy, tmp_path)
    assert server.ranges == [None]
    check_whole(tmp_path)


def test_files_that_are_no_archive_lie_in_the_folder_under_their_names(server, tmp_path):
    remotes = [remote_of(server, name, data, "none") for name, data in {"a.mat": b"first", "b.mat": b"second"}.items()]
    get(entry(*remotes), tmp_path)
    found = tree(tmp_path / "toy-folder")
    assert found.pop(".complete")
    assert found == {"a.mat": b"first", "b.mat": b"second"}


def test_zip_and_plain_tar_are_unpacked_too_and_loose_files_stay_loose(server, tmp_path):
    one = remote_of(server, "one.zip", zip_of({"train/0.png": b"0"}), "zip")
    two = remote_of(server, "two.tar", tar_of({"./test/0.png": b"1"}, "w"))
    get(entry(one, two), tmp_path)
    assert sorted(tree(tmp_path / "toy-folder")) == [".complete", "test/0.png", "train/0.png"]


def test_a_part_is_continued_where_it_ends(server, toy, tmp_path):
    leave(tmp_path, PACKED[:1_000_000])
    get(toy, tmp_path)
    assert server.ranges == ["bytes=1000000-"]
    check_whole(tmp_path)


def test_a_whole_part_is_not_downloaded_again(server, toy, tmp_path):
    leave(tmp_path, PACKED)
    get(toy, tmp_path)
    assert server.ranges == []
    check_whole(tmp_path)


def test_a_connection_that_is_cut_is_continued(server, toy, tmp_path):
    server.answers = [cut(700_000), slam, status(503), cut(600_000), serve]
    get(toy, tmp_path)
    assert server.ranges == [None, *["bytes=700000-"] * 3, "bytes=1300000-"]
    check_whole(tmp_path)


def test_too_many_cuts_are_an_error_that_says_how_to_continue(server, toy, tmp_path):
    server.answers = [cut(100_000)]
    line = fails(toy, tmp_path, "broke off 5 times")
    assert f"500,000 of {len(PACKED):,} bytes" in line
    assert "`vnd data fetch toy` continues" in line
    assert part(tmp_path).read_bytes() == PACKED[:500_000]
    server.answers = [serve]
    get(toy, tmp_path)
    assert server.ranges[-1] == "bytes=500000-"
    check_whole(tmp_path)


def test_waiting_between_tries_grows(server, toy, tmp_path):
    server.answers, waits = [slam], []
    with pytest.raises(OSError, match="broke off"):
        fetch(toy, tmp_path, console=Console(file=io.StringIO()), pause=waits.append)
    assert waits == [1, 2, 4, 8]


def test_a_server_that_ignores_ranges_sends_the_file_from_its_start(server, toy, tmp_path):
    leave(tmp_path, b"x" * 1_000_000)  # nothing of it may stay
    server.answers = [whole]
    get(toy, tmp_path)
    assert server.ranges == ["bytes=1000000-"]
    check_whole(tmp_path)


def test_a_file_sent_from_its_start_and_cut_keeps_nothing_of_the_old_part(server, toy, tmp_path):
    leave(tmp_path, b"x" * 1_000_000)
    server.answers = [
        lambda handler, body: handler.send(200, body[:300_000], Content_Length=str(len(body))),
        serve,
    ]
    get(toy, tmp_path)
    assert server.ranges == ["bytes=1000000-", "bytes=300000-"]
    check_whole(tmp_path)


def test_a_range_that_the_server_does_not_have_starts_the_file_over(server, toy, tmp_path):
    leave(tmp_path, PACKED[:1000])
    server.answers = [status(416), serve]
    get(toy, tmp_path)
    assert server.ranges == ["bytes=1000-", None]
    check_whole(tmp_path)


def test_a_part_longer_than_the_file_starts_over(server, toy, tmp_path):
    leave(tmp_path, PACKED + b"more")
    get(toy, tmp_path)
    assert server.ranges == [None]
    check_whole(tmp_path)


@pytest.mark.parametrize("start", [0, 1000])
@pytest.mark.parametrize(
    "page",
    [
        lambda handler, body: handler.send(200, b"<html>log in</html>", Content_Type="text/html; charset=utf-8"),
        lambda handler, body: handler.send(200, b"\n <!DOCTYPE html>".ljust(len(body))),
    ],
    ids=["said", "disguised"],
)
def test_a_web_page_is_never_taken_for_the_file_and_costs_nothing_that_was_there(server, toy, tmp_path, page, start):
    leave(tmp_path, PACKED[:start])
    server.answers = [page]
    fails(toy, tmp_path, "got a web page")
    assert part(tmp_path).read_bytes() == PACKED[:start]
    server.answers = [serve]
    get(toy, tmp_path)
    check_whole(tmp_path)


def test_a_wrong_hash_is_refused_and_not_continued(server, toy, tmp_path):
    right, server.files["set.tar.gz"] = PACKED, PACKED[:-1] + b"?"
    line = fails(toy, tmp_path, "must have SHA-256")
    assert toy.remotes[0].sha256 in line
    assert not part(tmp_path).exists()
    server.files["set.tar.gz"] = right
    get(toy, tmp_path)
    assert server.ranges == [None, None]
    check_whole(tmp_path)


def test_a_damaged_part_is_found_by_the_hash(server, toy, tmp_path):
    leave(tmp_path, b"?" + PACKED[1:1000])
    fails(toy, tmp_path, "must have SHA-256")
    assert not part(tmp_path).exists()
    get(toy, tmp_path)
    check_whole(tmp_path)


@pytest.mark.parametrize(
    "answer",
    [
        lambda handler, body: handler.send(200, body[:-1]),
        lambda handler, body: handler.send(200, body + b"?"),
        lambda handler, body: handler.send(200, body + b"?", Content_Length=""),
        lambda handler, body: handler.send(204, b""),
    ],
    ids=["short", "long", "long and unsaid", "no content"],
)
def test_a_wrong_length_is_refused(server, toy, tmp_path, answer):
    server.answers = [answer]
    fails(toy, tmp_path, f"must have {len(PACKED):,} bytes")
    assert not part(tmp_path).exists()


@pytest.mark.parametrize(
    "said",
    ["bytes 0-9/10", f"bytes 999-9/{len(PACKED)}", f"bytes 1000-{len(PACKED)}/{len(PACKED) + 1}", "", "nonsense"],
)
def test_a_wrong_range_is_refused(server, toy, tmp_path, said):
    leave(tmp_path, PACKED[:1000])
    server.answers = [lambda handler, body: handler.send(206, body[1000:], Content_Range=said)]
    fails(toy, tmp_path, "must send bytes 1000-")
    assert not part(tmp_path).exists()


@pytest.mark.parametrize("code", [403, 404, 410])
def test_a_file_that_is_gone_is_one_line_with_the_way_by_hand(server, toy, tmp_path, code):
    server.answers = [status(code)]
    line = fails(toy, tmp_path, f"answers {code}")
    assert line.endswith("put toy.bin into toy-folder")
    assert len(server.ranges) == 1


def test_a_host_that_cannot_be_reached_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as taken:  # bound and not listening: nobody else can take the port
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/set.tar.gz"
        line = fails(entry(Remote(url, "0" * 64, 10, "tar")), tmp_path, "cannot reach 127.0.0.1 ")
    assert "with a network run `vnd data fetch toy` again" in line
    assert line.endswith(
        f"again, or put the files yourself into {tmp_path / 'toy-folder'}: put toy.bin into toy-folder"
    )


def test_a_redirect_within_http_is_followed(server, toy, tmp_path):
    server.answers = [redirect(server.url("set.tar.gz")), serve]
    get(toy, tmp_path)
    check_whole(tmp_path)


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:text/plain,hello"])
def test_a_redirect_to_another_scheme_is_refused(server, toy, tmp_path, place):
    server.answers = [redirect(place)]
    fails(toy, tmp_path, "only http and https|is not allowed")
    assert not part(tmp_path).exists()


def test_a_catalogue_of_another_scheme_is_refused(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    remote = Remote(secret.as_uri(), hashlib.sha256(b"secret").hexdigest(), 6, "none")
    fails(entry(remote), tmp_path / "root", "only http and https")


def test_a_full_disk_is_one_line_and_keeps_what_is_there(server, toy, tmp_path, monkeypatch):
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vnd.data.fetch.os.fsync", full)
    fails(toy, tmp_path, "cannot be written: .*No space left")
    assert part(tmp_path).stat().st_size == len(PACKED)


def test_a_set_that_cannot_be_downloaded_says_what_to_do(tmp_path):
    line = fails(entry(), tmp_path, "toy cannot be downloaded", ValueError)
    assert line.endswith("put toy.bin into toy-folder")


def test_a_folder_of_the_user_is_left_alone(server, toy, tmp_path):
    mine = tmp_path / "toy-folder" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(FileExistsError, match="was not fetched by this command"):
        get(toy, tmp_path)
    assert tree(tmp_path) == {"toy-folder/mine.txt": b"mine"}
    assert server.ranges == []


def test_a_folder_that_lost_a_file_is_not_called_complete(server, toy, tmp_path):
    get(toy, tmp_path)
    (tmp_path / "toy-folder" / "train.bin").unlink()
    with pytest.raises(FileExistsError, match="no longer whole: 2 files of 4 bytes, not 3 of 3,000,004"):
        get(toy, tmp_path)


def test_a_folder_made_from_other_files_is_not_called_complete(server, toy, tmp_path):
    get(toy, tmp_path)
    with pytest.raises(FileExistsError, match="other files"):
        get(entry(remote_of(server, "set.tar.gz", tar_of({"set/x": b"new"}))), tmp_path)


def test_two_runs_do_not_write_one_part(toy, tmp_path):
    lock = tmp_path / ".downloads" / "toy.lock"
    lock.parent.mkdir()
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="another run is fetching toy"):
            get(toy, tmp_path)
    get(toy, tmp_path)
    check_whole(tmp_path)


# Unpacking


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")], ids=["stopped", "full"])
def test_an_interrupted_unpack_leaves_nothing_and_the_next_call_succeeds(server, toy, tmp_path, monkeypatch, error):
    write = fetching._write

    def broken(path: Path, *args: Any) -> None:
        if path.name == "test.bin":
            raise error
        write(path, *args)

    with monkeypatch.context() as patch:
        patch.setattr(fetching, "_write", broken)
        with pytest.raises((KeyboardInterrupt, OSError)):
            get(toy, tmp_path)
    assert [x.name for x in tmp_path.rglob("*") if x.is_file()] == ["toy-set.tar.gz.part"]
    get(toy, tmp_path)
    assert server.ranges == [None]
    check_whole(tmp_path)


def test_what_a_killed_unpack_left_is_not_taken_over(toy, tmp_path):
    stale = tmp_path / ".downloads" / "toy.unpack" / "set" / "stale.bin"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"half")
    get(toy, tmp_path)
    check_whole(tmp_path)


def test_an_error_at_the_last_step_leaves_nothing(toy, tmp_path, monkeypatch):
    def broken(source: Path, target: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(fetching.os, "replace", broken)
        fails(toy, tmp_path, "cannot be written")
    get(toy, tmp_path)
    check_whole(tmp_path)


def member_tar(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes = b"", then: str = "") -> bytes:
    """A tar of an honest file, one crafted member, and perhaps a file written through it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for one, what, where, content in (("ok", tarfile.REGTYPE, "", b"ok"), (name, kind, link, data)):
            member = tarfile.TarInfo(one)
            member.type, member.linkname, member.size = what, where, len(content)
            tar.addfile(member, io.BytesIO(content))
        if then:
            member = tarfile.TarInfo(then)
            member.size = 4
            tar.addfile(member, io.BytesIO(b"evil"))
    return out.getvalue()


def member_zip(name: str, mode: int = 0, data: bytes = b"evil", kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", kind) as packed:
        packed.writestr("ok", b"ok")
        member = zipfile.ZipInfo("placeholder")
        member.filename, member.external_attr, member.compress_type = name, mode << 16, kind
        packed.writestr(member, data)
    return out.getvalue()


def patched(data: bytes, old: bytes, new: bytes) -> bytes:
    assert old in data
    assert len(old) == len(new)
    return data.replace(old, new)


def pax_bomb() -> bytes:
    """Ten megabytes of header before the first member, in ten kilobytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", pax_headers={"comment": "0" * 10**7}) as tar:
        tar.addfile(tarfile.TarInfo("ok"))
    return out.getvalue()


def lying_tar() -> bytes:
    """A header that promises a hundred times what follows."""
    plain = tar_of({"x": b"0" * 1000}, "w")
    header = bytearray(plain[:512])
    header[124:136] = b"%011o\0" % 100_000
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(b" " * 8) + sum(header[156:]))
    return bytes(header) + plain[512:]


def encrypted() -> bytes:
    data = bytearray(zip_of({"x": b"evil"}))
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    return bytes(data)


ZEROS = b"\0" * 30_000_000
HOSTILE: dict[str, tuple[str, Callable[[], bytes]]] = {
    "tar parent": ("tar", lambda: member_tar("../x")),
    "tar parent within": ("tar", lambda: member_tar("a/../../x")),
    "tar absolute": ("tar", lambda: member_tar("/tmp/vnd-evil")),
    "tar symlink out": ("tar", lambda: member_tar("link", tarfile.SYMTYPE, "../..")),
    "tar symlink absolute": ("tar", lambda: member_tar("link", tarfile.SYMTYPE, "/etc/passwd")),
    "tar written through a symlink": ("tar", lambda: member_tar("link", tarfile.SYMTYPE, "..", then="link/x")),
    "tar hardlink out": ("tar", lambda: member_tar("link", tarfile.LNKTYPE, "../outside")),
    "tar hardlink absolute": ("tar", lambda: member_tar("link", tarfile.LNKTYPE, "/etc/passwd", then="link")),
    "tar symlink within": ("tar", lambda: member_tar("link", tarfile.SYMTYPE, "ok")),
    "tar sparse": ("tar", lambda: member_tar("holes", tarfile.GNUTYPE_SPARSE)),
    "tar device": ("tar", lambda: member_tar("null", tarfile.CHRTYPE)),
    "tar pipe": ("tar", lambda: member_tar("pipe", tarfile.FIFOTYPE)),
    "tar backslash": ("tar", lambda: member_tar("..\\x")),
    "tar drive": ("tar", lambda: member_tar("C:x")),
    "tar control characters": ("tar", lambda: member_tar("a\x1b[2Jb")),
    "tar text turned round": ("tar", lambda: member_tar("a\u202egpj.exe")),
    "tar bytes that are no text": ("tar", lambda: member_tar("a\udcffb")),
    "tar long name": ("tar", lambda: member_tar("x" * 300)),
    "tar deep": ("tar", lambda: member_tar("x/" * 200 + "x")),
    "tar twice": ("tar", lambda: member_tar("ok", data=b"evil")),
    "tar file as folder": ("tar", lambda: member_tar("ok/x", data=b"evil")),
    "tar folder as file": ("tar", lambda: member_tar("d", tarfile.DIRTYPE, then="d")),
    "tar bomb": ("tar", lambda: tar_of({"x": ZEROS})),
    "tar bomb in pieces": ("tar", lambda: tar_of({str(i): ZEROS[:1_000_000] for i in range(30)})),
    "tar bomb in a header": ("tar", pax_bomb),
    "tar lying about its size": ("tar", lying_tar),
    "tar cut short": ("tar", lambda: PACKED[:100_000]),
    "tar that is none": ("tar", lambda: b"<html>not found</html>" * 100),
    "tar that is nothing": ("tar", lambda: b""),
    "tar gzip of noise": ("tar", lambda: gzip.compress(NOISE[:5000])),
    "zip parent": ("zip", lambda: member_zip("../x")),
    "zip parent within": ("zip", lambda: member_zip("a/../../x")),
    "zip absolute": ("zip", lambda: member_zip("/tmp/vnd-evil")),
    "zip symlink": ("zip", lambda: member_zip("link", stat.S_IFLNK | 0o777, b"../..")),
    "zip device": ("zip", lambda: member_zip("null", stat.S_IFCHR | 0o666)),
    "zip backslash": ("zip", lambda: member_zip("..\\x")),
    "zip drive": ("zip", lambda: member_zip("C:/x")),
    "zip zero byte": ("zip", lambda: patched(member_zip("a|../../x"), b"a|../../x", b"a\0../../x")),
    "zip bomb": ("zip", lambda: zip_of({"x": ZEROS}, compression=zipfile.ZIP_DEFLATED)),
    "zip lying about its size": (
        "zip",
        lambda: patched(
            zip_of({"x": ZEROS}, compression=zipfile.ZIP_DEFLATED), struct.pack("<I", len(ZEROS)), struct.pack("<I", 9)
        ),
    ),
    "zip damaged": ("zip", lambda: patched(zip_of({"x": b"honest"}), b"honest", b"evil!!")),
    "zip damaged header": ("zip", lambda: patched(zip_of({"honest": b""}), b"PK\x03\x04", b"PK\x03\x05")),
    "zip encrypted": ("zip", encrypted),
    "zip of another compression": ("zip", lambda: member_zip("x", kind=zipfile.ZIP_LZMA)),
    "zip twice": ("zip", lambda: patched(zip_of({"one": b"1", "two": b"2"}), b"two", b"one")),
    "zip file as folder": ("zip", lambda: zip_of({"ok": b"", "ok/x": b"evil"})),
    "zip cut short": ("zip", lambda: zip_of({"x": NOISE[:5000]})[:4000]),
    "zip that is none": ("zip", lambda: b"<html>not found</html>" * 100),
}


def check_hostile(kind: str, data: bytes, root: Path) -> None:
    """An archive with the right hash is refused in one line, and nothing of it lies anywhere."""
    root.mkdir()
    (root / "outside").write_text("mine")
    leave(root / "data", data)
    part(root / "data").rename(part(root / "data", "x"))
    remote = Remote("http://127.0.0.1:9/x", hashlib.sha256(data).hexdigest(), len(data), kind)
    line = fails(entry(remote), root / "data", "is refused: ")
    assert line.isprintable()
    assert tree(root) == {"outside": b"mine"}
    assert not Path("/tmp/vnd-evil").exists()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_are_refused(name, tmp_path):
    kind, make = HOSTILE[name]
    check_hostile(kind, make(), tmp_path / "root")


def test_a_check_of_names_that_lets_paths_out_is_caught(tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "safe_parts", lambda name: name.split("/"))
    with pytest.raises(pytest.fail.Exception):
        check_hostile("zip", member_zip("../../x"), tmp_path / "root")


def test_a_bound_that_is_not_kept_is_caught(tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "EXPANSION", 10**6)
    with pytest.raises(pytest.fail.Exception):
        check_hostile("tar", tar_of({"x": ZEROS}), tmp_path / "root")


@pytest.mark.parametrize("size", [3, 5])
def test_a_member_of_another_size_than_promised_is_refused(tmp_path, size):
    with pytest.raises(ValueError, match=f"'x' must have {size} bytes; got {'more' if size == 3 else 4}"):
        fetching._write(tmp_path / "x", "x", size, io.BytesIO(b"four"), lambda count: None)


def test_too_many_members_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "MEMBERS", 2)
    (tmp_path / "x.tar").write_bytes(PACKED)
    with pytest.raises(ValueError, match="more than 2 members"):
        unpack(tmp_path / "x.tar", tmp_path / "out", "tar")


def test_an_unknown_kind_is_refused(tmp_path):
    with pytest.raises(ValueError, match="kind must be tar or zip; got 'rar'"):
        unpack(tmp_path / "x.rar", tmp_path / "out", "rar")


# The catalogue


def test_what_the_catalogue_offers_is_well_formed():
    for name, dataset in DATASETS.items():
        assert dataset.name == name
        assert dataset.manual or dataset.embedded
        for remote in dataset.remotes:
            assert remote.url.startswith(("http://", "https://"))
            assert remote.size > 0
            assert remote.unpack in ("tar", "zip", "none")
            assert len(remote.sha256) == 64
            assert set(remote.sha256) <= set("0123456789abcdef")
        assert len(fetching._hashes(dataset)) == len(dataset.remotes)
