"""This very package as a file, for the Python workers of a cluster or a Connect server.

What Spark runs in Python workers is sent to them by name: `isthmus.pipeline.…`.  So they need the
package, and in the same version as the job that was started here; a session that is not all on
this machine ships it.  What else they need (NumPy, PyArrow) has native code and must be installed
there.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import isthmus

__all__ = ["package_zip"]


def package_zip(folder: Path) -> Path:
    """Write the package's source into a file in `folder`."""
    package = Path(isthmus.__file__).parent
    path = folder / "isthmus.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for source in sorted(package.rglob("*.py")):
            target.write(source, source.relative_to(package.parent))
    return path
