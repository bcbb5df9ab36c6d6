"""``python -m isthmus``."""

from __future__ import annotations

from isthmus.cli.main import main

if __name__ == "__main__":
    main()
