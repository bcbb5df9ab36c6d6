"""Runs examples/five-brokers.toml and shows it in docs/howto/let-nodes-find-each-other.md.

    python scripts/five_brokers.py            run it, write the record and the page
    python scripts/five_brokers.py --check    exit 1 if the page is not what the record says

The record, docs/howto/five-brokers.json, has what the command printed the first time, and for each
time how long the nodes took from when the last of them was up until they had built their tree.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
EXAMPLE = "examples/five-brokers.toml"
PAGE = ROOT / "docs" / "howto" / "let-nodes-find-each-other.md"
RECORD = PAGE.with_name("five-brokers.json")
RUNS = 10
MARKED = re.compile(r"(<!-- five-brokers -->\n).*(<!-- /five-brokers -->)", re.DOTALL)
TOOK = re.compile(r"built a tree, (\d+\.\d+) s after")


def run() -> str:
    """What `isthmus up` prints."""
    command = [sys.executable, "-m", "isthmus", "up", EXAMPLE, "--for", "0.5"]
    return subprocess.check_output(command, cwd=ROOT, text=True)


def record() -> dict[str, Any]:
    """Run the example `RUNS` times."""
    outputs = []
    for _ in range(RUNS):
        outputs.append(run())
        print(_took_s(outputs[-1]), flush=True)
    commit = ["git", "rev-parse", "--short", "HEAD"]
    return {
        "commit": subprocess.check_output(commit, cwd=ROOT, text=True).strip(),
        "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
        "took_s": [_took_s(output) for output in outputs],
        "output": outputs[0].splitlines(),
    }


def _took_s(output: str) -> float:
    found = TOOK.search(output)
    if found is None:
        raise SystemExit(f"no tree was built:\n{output}")
    return float(found[1])


def shown(page: str, document: dict[str, Any]) -> str:
    """`page` with what the record says between the marks."""
    took_s = document["took_s"]
    lines = [
        "```console",
        f"$ isthmus up {EXAMPLE}",
        *(line for line in document["output"] if not line.startswith("Ends in")),
        "```",
        "",
        f"Ten times in a row it took {min(took_s):.2f} to {max(took_s):.2f} s (median "
        f"{median(took_s):.2f} s) from when the last node was up until all five had found each "
        f"other and used one tree: commit {document['commit']}, {document['cores']} cores with a "
        f"load of {document['load_average'][0]:.0f}, {document['time']}.",
    ]
    text = "\n".join(lines)
    return MARKED.sub(lambda found: f"{found[1]}{text}\n{found[2]}", page)


def main() -> int:
    page = PAGE.read_text()
    if "--check" in sys.argv:
        return int(shown(page, json.loads(RECORD.read_text())) != page)
    document = record()
    RECORD.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(shown(page, document))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
