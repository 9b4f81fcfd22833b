"""A wheel in the folder of a package index."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

NAME, VERSION = "tiny-model", "1.0"


def save_wheel(site: Path, members: dict[str, bytes]) -> str:
    """Write a wheel to a package index's folder, and return the ``model.name`` of the model in it."""
    place = site / "simple" / NAME
    place.mkdir(parents=True, exist_ok=True)
    wheel, info = place / f"tiny_model-{VERSION}-py3-none-any.whl", f"tiny_model-{VERSION}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
        for name, content in members.items():
            archive.writestr(name, content)
    return f"package:{NAME}=={VERSION}#sha256={hashlib.sha256(wheel.read_bytes()).hexdigest()}"
