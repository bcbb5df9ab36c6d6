"""Entry of the ``isthmus`` command, and running one node.

A node must listen within a second of its start, so ``isthmus node FILE`` is recognized here and
goes its way without the command-line library; everything else is in :mod:`isthmus.cli.commands`.

Exit codes: 0 as asked, 1 something failed while running, 2 wrong configuration or usage.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

from isthmus.errors import ConfigError, IsthmusError

__all__ = ["EXIT_CONFIG", "EXIT_FAILED", "main", "run_node"]

EXIT_FAILED = 1
EXIT_CONFIG = 2


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if len(arguments) == 2 and arguments[0] == "node" and not arguments[1].startswith("-"):
            raise SystemExit(run_node(Path(arguments[1])))
        from isthmus.cli.commands import app

        app(args=arguments, prog_name="isthmus")
    except ConfigError as error:
        for mistake in error.mistakes:
            print(mistake, file=sys.stderr)
        raise SystemExit(EXIT_CONFIG) from None
    except IsthmusError as error:
        print(f"isthmus: {error}", file=sys.stderr)
        raise SystemExit(EXIT_FAILED) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:
        # The reader of our output is gone (`isthmus check … | head`); nothing is left to tell it.
        sys.stderr.close()
        raise SystemExit(EXIT_FAILED) from None


def run_node(path: Path) -> int:
    """Run the node that `path` describes until it is told to stop; the exit code."""
    gc.disable()  # until the node is there: of what is imported nothing is garbage
    try:
        return _run_node(path)
    finally:
        gc.enable()


def _run_node(path: Path) -> int:
    from isthmus.config.files import load_node_config, located

    config = load_node_config(path)
    from isthmus.node.runtime import run

    try:
        return run(config)
    except OSError as error:  # a listener's address; the node names the key
        print(f"isthmus: {path}: {error.strerror or error}", file=sys.stderr)
        return EXIT_FAILED
    except ConfigError as error:  # what only the algorithm can judge
        raise located(error, path) from None
