"""Arrays in .npz files, whatever their names are."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def write_npz(target: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write an uncompressed .npz that `numpy.load` reads.

    `numpy.savez` takes names as keyword arguments: an array called `file` collides with its own.
    """
    import numpy as np

    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
