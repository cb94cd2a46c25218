"""3D Chairs: renderings of chair models from many sides, without labels."""

from pathlib import Path
from typing import Literal

import numpy as np

from vnd.data.arrays import Images
from vnd.data.decode import Form, decode, pictures, subfolders

FORM = Form(3, 64, 64, resize=True)


def read(folder: Path, split: Literal["train", "test"]) -> Images:
    """Read `CHAIR/renders/*.png` as RGB, the whole frame resized to 64×64.

    Aubry et al. (2014); 86,366 images of 1,393 chairs from 62 sides. The last tenth of the chairs, by name, is the test
    split; `groups` is the number of the chair.
    """
    chairs = [x for x in subfolders(folder) if (x / "renders").is_dir()]
    if len(chairs) < 2:
        raise ValueError(f"{folder}: must hold at least 2 folders CHAIR/renders; got {len(chairs)}")
    first = len(chairs) - max(1, len(chairs) // 10)
    numbered = list(enumerate(chairs))[slice(first, None) if split == "test" else slice(0, first)]
    numbered_files = [(number, pictures(chair / "renders", (".png",))) for number, chair in numbered]
    files = [file for _, group in numbered_files for file in group]
    groups = np.array([number for number, group in numbered_files for _ in group], np.int64)
    return Images(decode(folder, f"chairs-{split}", files, FORM), groups=groups)
