"""How large the package is that people download."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from pathlib import Path

import warplens

#: What the requirements allow.
MOST_BYTES = 3_000_000

#: Metadata, licence and entry points of the distribution, beside RECORD.
ABOUT_BYTES = 15_000


def test_the_wheel_is_no_larger_than_allowed() -> None:
    """Packed as the build backend packs it: deflated in a zip archive, with a RECORD of hashes."""
    package = Path(warplens.__file__).parent
    held, record = io.BytesIO(), []
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path in sorted(package.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                name, content = str(path.relative_to(package.parent)), path.read_bytes()
                wheel.writestr(name, content)
                digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
                record.append(f"{name},sha256={digest},{len(content)}")
        wheel.writestr("warplens.dist-info/RECORD", "\n".join(record))
    size = len(held.getvalue()) + ABOUT_BYTES
    assert size <= MOST_BYTES, f"{size:,} bytes: large files that the package does not need belong into data/"
