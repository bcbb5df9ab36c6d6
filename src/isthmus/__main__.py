"""``python -m isthmus``."""

from __future__ import annotations

from isthmus.cli import main

if __name__ == "__main__":
    main()
