"""Draws the packages and what they import of each other into docs/explanation/packages.md.

    python scripts/packages.py            write the figure anew
    python scripts/packages.py --check    exit 1 if it is not what the code says

An arrow that can be had by going over others is left out; the table has all of them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "isthmus"
PAGE = ROOT / "docs" / "explanation" / "packages.md"
EVERYWHERE = {"errors", "graph", "logs", "tables"}
"""Modules that belong to no package, and may be imported anywhere."""


def imported_by(file: Path) -> set[str]:
    """The packages of ours that `file` imports."""
    names: set[str] = set()
    for item in ast.walk(ast.parse(file.read_text())):
        if isinstance(item, ast.Import):
            names |= {alias.name for alias in item.names}
        elif isinstance(item, ast.ImportFrom):
            if item.level:
                raise ValueError(f"{file}: relative import")
            names |= {f"{item.module}.{alias.name}" for alias in item.names}
    return {name.split(".")[1] for name in names if name.startswith("isthmus.")} - {"__version__"}


def packages() -> dict[str, set[str]]:
    """Every package, and those that it imports."""
    found: dict[str, set[str]] = {}
    for folder in sorted(SOURCE.iterdir()):
        if (folder / "__init__.py").exists():
            files = sorted(folder.rglob("*.py"))
            imports = set().union(*map(imported_by, files))
            found[folder.name] = imports - EVERYWHERE - {folder.name}
    return found


def reached(imports: Mapping[str, set[str]], start: str) -> set[str]:
    """All that `start` imports, directly or not."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for name in imports.get(waiting.pop(), set()) - found:
            found.add(name)
            waiting.append(name)
    return found


def figure(imports: Mapping[str, set[str]]) -> str:
    lines = ["```mermaid", "graph BT"]
    for package, others in imports.items():
        for other in sorted(others):
            rest = others - {other}
            if not any(other in reached(imports, each) for each in rest):
                lines.append(f"    {package} --> {other}")
    lines += ["```", "", "| package | imports |", "|---|---|"]
    for package, others in imports.items():
        lines.append(f"| `{package}` | {', '.join(sorted(others)) or 'nothing of ours'} |")
    return "\n".join(lines)


def with_figure(page: str) -> str:
    drawn, count = re.subn(
        r"(<!-- packages -->\n).*?(\n<!-- /packages -->)",
        lambda found: f"{found[1]}{figure(packages())}{found[2]}",
        page,
        flags=re.DOTALL,
    )
    if count != 1:
        raise ValueError(f"{PAGE} has no place for the figure")
    return drawn


def main() -> int:
    page = PAGE.read_text()
    drawn = with_figure(page)
    if "--check" in sys.argv[1:]:
        if page != drawn:
            print(f"{PAGE.relative_to(ROOT)} is not what the code says: python scripts/packages.py")
            return 1
        return 0
    PAGE.write_text(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())
