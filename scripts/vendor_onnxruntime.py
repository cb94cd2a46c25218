"""Fetch the runtime of `vnd.page` anew: onnxruntime-web of one version, compressed, with its license.

From npm come the module and its WebAssembly, from PyPI, of the same version of onnxruntime, the license and the notices
of third parties, which npm's package lacks. Each file must have its SHA-256. To move on, change `VERSION`,
run with `--show`, and write what it prints into `SHA256`. The same files give the same bytes wherever zlib is the same.

    python scripts/vendor_onnxruntime.py           # writes src/vnd/_page/runtime; needs npm, and pip
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "src" / "vnd" / "_page" / "runtime"
VERSION = "1.30.0"
FILES = {  # file here → the package that it is from, and its path there
    "ort.wasm.bundle.min.mjs": ("npm", "package/dist/ort.wasm.bundle.min.mjs"),
    "ort-wasm-simd-threaded.wasm": ("npm", "package/dist/ort-wasm-simd-threaded.wasm"),
    "LICENSE-onnxruntime.txt": ("pip", "onnxruntime/LICENSE"),
    "ThirdPartyNotices-onnxruntime.txt": ("pip", "onnxruntime/ThirdPartyNotices.txt"),
}
SHA256 = {
    "ort.wasm.bundle.min.mjs": "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    "ort-wasm-simd-threaded.wasm": "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
    "LICENSE-onnxruntime.txt": "2f07c72751aed99790b8a4869cf2311df85a860b22ded05fa22803587a48922c",
    "ThirdPartyNotices-onnxruntime.txt": "143764b952fdb1a7c69ce653bfba74a7744d6a8a573bfb73e235fba356c83de3",
}


def main() -> None:
    """Fetch, check, compress, write."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--show", action="store_true", help="only print the checksums of what is fetched")
    show = options.parse_args().show
    with tempfile.TemporaryDirectory() as folder:
        contents = fetch(Path(folder))
    found = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    if show:
        print(json.dumps(found, indent=4))
        return
    wrong = [name for name, checksum in found.items() if checksum != SHA256[name]]
    if wrong:
        sys.exit(f"of onnxruntime {VERSION}, {', '.join(wrong)}: the SHA-256 is not the one that is written here")
    PLACE.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (PLACE / f"{name}.gz").write_bytes(gzip.compress(content, 9, mtime=0))
    about = {"name": "onnxruntime-web", "version": VERSION, "license": "MIT", "sha256": found}
    (PLACE / "runtime.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    for path in sorted(PLACE.iterdir()):
        print(f"{path.stat().st_size:>9,}  {path.relative_to(ROOT)}")


def fetch(folder: Path) -> dict[str, bytes]:
    """The files by their names here."""
    run(folder, "npm", "pack", "--silent", f"onnxruntime-web@{VERSION}")
    run(folder, sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"onnxruntime=={VERSION}")
    with tarfile.open(next(folder.glob("*.tgz"))) as archive, zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:

        def read(package: str, path: str) -> bytes:
            if package == "pip":
                return wheel.read(path)
            file = archive.extractfile(path)
            if file is None:
                sys.exit(f"{path} of onnxruntime-web {VERSION} is no file")
            with file:
                return file.read()

        return {name: read(*place) for name, place in FILES.items()}


def run(folder: Path, *words: str) -> None:
    """Run a command in a folder, or end in one line."""
    try:
        subprocess.run(words, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"{words[0]} is needed to fetch onnxruntime {VERSION}: {error}")


if __name__ == "__main__":
    main()
