"""What every benchmark of rows says of itself, and where it writes it."""

import json
import platform
from pathlib import Path
from typing import Any

import torch


def write(out: Path, command: str, device: str, **rest: Any) -> None:
    """Write a benchmark's numbers as JSON, after what they were measured with and on."""
    machine = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    about = {"command": command, "device": device, "machine": machine}
    about |= {"threads": torch.get_num_threads(), "torch": torch.__version__}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(about | rest, indent=2) + "\n")
    print(f"written to {out}")
