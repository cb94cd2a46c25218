"""Training without what only POSIX has: Windows has no fcntl, no fork, no pread, and opens no folders."""

import subprocess
import sys
from pathlib import Path

HIDDEN = r"""
import os, shutil, signal, sys
import accelerate, filelock, torch  # which know what there is
import fcntl as known
del sys.modules["fcntl"]
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
own_open, own_fsync = os.open, os.fsync

def opens(path, flags, *rest, **options):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", str(path))
    return own_open(path, flags, *rest, **options)

def fsync(file):
    number = file if isinstance(file, int) else file.fileno()
    if not known.fcntl(number, known.F_GETFL) & (os.O_RDWR | os.O_WRONLY):
        raise OSError(9, "Bad file descriptor")
    own_fsync(number)

os.open, os.fsync, shutil._use_fd_functions = opens, fsync, False
names = ("O_DIRECTORY", "fork", "forkpty", "geteuid", "getuid", "killpg", "pread", "pwrite", "register_at_fork")
for name in (*names, "sched_getaffinity", "setsid", "sync"):
    delattr(os, name)
for name in ("SIGALRM", "SIGHUP", "SIGKILL", "SIGUSR1"):
    delattr(signal, name)

from pathlib import Path
import vnd
from train.small import recipe, write_blobs
from vnd.train import loop, sweep

class Wish(loop.GracefulStop):
    steps = 0

    def asked(self, accelerator):
        Wish.steps += 1
        return Wish.steps == 7

loop.GracefulStop = Wish
folder = Path(sys.argv[1])
wanted = recipe(write_blobs(folder / "blobs.npz"))
assert not loop.fit(wanted, folder / "run", quiet=True)
with (folder / "run" / "metrics.jsonl").open("ab") as log:
    log.write(b'{"step":')  # what a kill leaves
assert loop.fit(wanted, folder / "run", quiet=True)
assert b"\r" not in (folder / "run" / "metrics.jsonl").read_bytes()
with (folder / "sweep.log").open("ab", buffering=0) as log:
    assert sweep._lock(log)
vnd.save(vnd.load(folder / "run" / "last"), folder / "again")
print(type(vnd.load(folder / "again")).__name__)
"""


def test_a_run_is_trained_stopped_and_goes_on_without_what_only_posix_has(tmp_path: Path) -> None:
    paths = {"PYTHONPATH": f"{Path(__file__).parents[1]}:{Path(__file__).parents[2] / 'src'}"}
    words = [sys.executable, "-c", HIDDEN, str(tmp_path)]
    ran = subprocess.run(words, capture_output=True, text=True, check=False, env=paths)
    assert ran.stdout == "ConvNet\n", ran.stderr
