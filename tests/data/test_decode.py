"""The cache of decoded images: served while the files are the same, never when they are not, and never half-written."""

import hashlib
import os
import resource
from pathlib import Path

import numpy as np
import pytest

from data.layouts import flat, picture
from vnd.data import decode, load
from vnd.data.decode import data_root

DAMAGED = r"^cache: .*\.npy is damaged: its SHA-256 is not the one that was written; decoding the images anew$"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of six images, values 0 … 5, of which the last is the test split."""
    monkeypatch.setenv("VND_DATA", str(tmp_path / "root"))
    for number in range(6):
        picture(tmp_path / "own" / "a" / f"{number}.png", flat(number, 8, 8))
    return tmp_path / "own"


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are decoded."""
    names: list[str] = []
    real = decode.picture

    def watched(path: Path, form: decode.Form) -> np.ndarray:
        names.append(path.name)
        return real(path, form)

    monkeypatch.setattr(decode, "picture", watched)
    return names


def values(own: Path, split: str = "train") -> list[int]:
    return load("folder", split, own).pixels[:, 0, 0, 0].tolist()


def caches(own: Path) -> list[Path]:
    """The cached arrays; beside each lies its checksum, and nothing else."""
    found = sorted((own.parent / f".{own.name}.vnd-cache").glob("*"))
    arrays = [path for path in found if path.suffix == ".npy"]
    assert found == sorted([*arrays, *(path.with_suffix(".sha256") for path in arrays)])
    return arrays


def test_the_second_reading_decodes_nothing(own, decoded):
    assert values(own) == [0, 1, 2, 3, 4]
    assert len(decoded) == 5
    assert values(own) == [0, 1, 2, 3, 4]
    assert len(decoded) == 5
    assert values(own, "test") == [5]
    assert len(decoded) == 6
    assert len(caches(own)) == 2
    pixels = load("folder", "train", own).pixels
    assert isinstance(pixels, np.memmap)
    assert not pixels.flags.writeable
    assert not [x for x in own.rglob("*") if x.name[0] == "."]  # a data set's own folder stays as it was


def test_blocks_are_put_together_in_order(own, monkeypatch):
    monkeypatch.setattr(decode, "BLOCK", 2)
    assert values(own) == [0, 1, 2, 3, 4]
    assert values(own) == [0, 1, 2, 3, 4]


def test_a_changed_folder_is_not_served_stale(own, decoded):
    values(own)
    about = (own / "a" / "2.png").stat()
    picture(own / "a" / "2.png", flat(77, 8, 8))  # as many bytes, another time
    os.utime(own / "a" / "2.png", ns=(about.st_atime_ns, about.st_mtime_ns + 1))
    assert values(own) == [0, 1, 77, 3, 4]
    (own / "a" / "2.png").rename(own / "a" / "9.png")  # the same file, under another name
    assert values(own) == [0, 1, 3, 4, 5]
    picture(own / "a" / "1.5.png", flat(15, 8, 8))
    assert values(own) == [0, 15, 1, 3, 4, 5]
    assert len(caches(own)) == 1  # what is out of date is removed
    before = len(decoded)
    values(own)
    assert len(decoded) == before


def test_files_that_change_names_change_places(own):
    about = (own / "a" / "1.png").stat()
    for path in (own / "a").iterdir():
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert (own / "a" / "2.png").stat().st_size == about.st_size  # so that names alone tell the two
    assert values(own) == [0, 1, 2, 3, 4]
    (own / "a" / "1.png").rename(own / "a" / "x")
    (own / "a" / "2.png").rename(own / "a" / "1.png")
    (own / "a" / "x").rename(own / "a" / "2-.png")
    assert values(own) == [0, 2, 1, 3, 4]


def test_the_same_size_and_time_under_other_bytes_is_the_limit_of_the_key(own):
    """What the key does not see, said by a test: nobody shall believe that contents are hashed."""
    values(own)
    about = (own / "a" / "2.png").stat()
    picture(own / "a" / "2.png", flat(77, 8, 8))
    assert (own / "a" / "2.png").stat().st_size == about.st_size
    os.utime(own / "a" / "2.png", ns=(about.st_atime_ns, about.st_mtime_ns))
    assert values(own) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY"])
def test_a_damaged_cache_is_made_anew(content, own, decoded):
    values(own)
    (cache,) = caches(own)
    whole = cache.read_bytes()
    for damage in (content, whole[:-1], whole[: len(whole) // 2], whole.replace(b"(5, 1, 8, 8)", b"(5, 8, 8, 1)")):
        cache.write_bytes(damage)
        with pytest.warns(RuntimeWarning, match=DAMAGED):
            assert values(own) == [0, 1, 2, 3, 4]
        assert cache.read_bytes() == whole
    assert len(decoded) == 25


def test_one_flipped_bit_is_found_wherever_it_is(own, decoded):
    values(own)
    (cache,) = caches(own)
    whole = cache.read_bytes()
    for at in (0, 20, 100, 128, len(whole) // 2, len(whole) - 1):
        broken = bytearray(whole)
        broken[at] ^= 4
        cache.write_bytes(broken)
        with pytest.warns(RuntimeWarning, match=DAMAGED):
            assert values(own) == [0, 1, 2, 3, 4]
        assert cache.read_bytes() == whole
    assert len(decoded) == 35


def test_a_cache_is_checked_once_a_process(own, monkeypatch):
    values(own)
    checked: list[str] = []
    real = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda file, how: (checked.append(file.name), real(file, how))[1])
    for _ in range(3):
        values(own)
    assert len(checked) <= 1
    checked.clear()
    monkeypatch.setattr(decode, "_checked", set())  # as in another process
    for _ in range(3):
        values(own)
    assert checked == [str(caches(own)[0])]


def test_a_checksum_that_is_missing_or_damaged_is_made_anew(own, decoded):
    values(own)
    (cache,) = caches(own)
    sums = cache.with_suffix(".sha256")
    whole = sums.read_text()
    assert whole == f"{hashlib.sha256(cache.read_bytes()).hexdigest()}  {cache.name}\n"
    decode._checked.clear()
    sums.unlink()  # as a kill leaves it: the array is there, and nobody knows whether it is right
    assert values(own) == [0, 1, 2, 3, 4]
    assert len(decoded) == 10
    for damage in ("", "x" * 64, "\udcff".encode("utf-8", "surrogateescape")):
        decode._checked.clear()
        sums.write_bytes(damage if isinstance(damage, bytes) else damage.encode())
        with pytest.warns(RuntimeWarning, match=DAMAGED):
            assert values(own) == [0, 1, 2, 3, 4]
        assert sums.read_text() == whole


def test_a_cache_of_a_pickle_is_not_run(own):
    values(own)
    (cache,) = caches(own)
    np.save(cache, np.array([print], object), allow_pickle=True)
    with pytest.warns(RuntimeWarning, match=DAMAGED):
        assert values(own) == [0, 1, 2, 3, 4]
    np.save(cache, np.array([print], object), allow_pickle=True)
    cache.with_suffix(".sha256").write_text(hashlib.sha256(cache.read_bytes()).hexdigest())
    assert values(own) == [0, 1, 2, 3, 4]


def test_where_the_folder_cannot_be_written_the_data_root_is_used(own, decoded):
    (own.parent / f".{own.name}.vnd-cache").write_text("in the way")
    assert values(own) == [0, 1, 2, 3, 4]
    assert len(list((data_root() / "cache").rglob("*.npy"))) == 1
    assert values(own) == [0, 1, 2, 3, 4]
    assert len(decoded) == 5


def test_where_nothing_can_be_written_it_stays_in_memory(own, decoded, monkeypatch):
    (own.parent / f".{own.name}.vnd-cache").write_text("in the way")
    (own.parent / "root").write_text("in the way")
    for _ in range(2):
        assert values(own) == [0, 1, 2, 3, 4]
    assert len(decoded) == 10


def test_two_folders_of_one_name_do_not_share_a_cache(own, tmp_path):
    """Not even below the data root, and with files of the same names, sizes and times."""
    other = tmp_path / "other" / "own"
    for folder, base in ((own, 50), (other, 60)):
        for number in range(6):
            path = folder / "a" / f"{number}.png"
            picture(path, flat(base + number, 8, 8))
            os.utime(path, ns=(10**18, 10**18))
        (folder.parent / ".own.vnd-cache").write_text("in the way")
    assert len({path.stat().st_size for path in tmp_path.rglob("*.png")}) == 1
    assert values(own) == [50, 51, 52, 53, 54]
    assert values(other) == [60, 61, 62, 63, 64]
    assert values(own) == [50, 51, 52, 53, 54]


def test_a_fault_while_writing_leaves_nothing_and_says_where(own, monkeypatch):
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    for name in ("_files.sync", "_files.os.replace", "data.decode.np.lib.format.write_array_header_1_0"):
        with monkeypatch.context() as patch:
            patch.setattr(f"vnd.{name}", full)
            with pytest.raises(OSError, match=r"vnd-cache/folder-train-\w+\.npy: No space left on device; make room"):
                values(own)
        assert caches(own) == []
    (own / "a" / "3.png").write_text("words")
    with pytest.raises(ValueError, match=r"3\.png"):
        values(own)
    assert caches(own) == []
    picture(own / "a" / "3.png", flat(3, 8, 8))
    assert values(own) == [0, 1, 2, 3, 4]


def test_a_short_write_of_the_system_leaves_nothing(own):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in (0, 100, 128 + 5 * 64 - 1):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        try:
            with pytest.raises(OSError, match="File too large; make room"):
                values(own)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert caches(own) == []
    assert values(own) == [0, 1, 2, 3, 4]


def test_the_data_root_is_the_variables_or_in_the_home(monkeypatch):
    monkeypatch.setenv("VND_DATA", "~/somewhere")
    assert data_root() == Path.home() / "somewhere"
    monkeypatch.setenv("VND_DATA", "")
    assert data_root() == Path.home() / ".cache" / "vnd" / "data"
    monkeypatch.delenv("VND_DATA")
    assert data_root() == Path.home() / ".cache" / "vnd" / "data"
