"""``python -m pipeline``, and the command ``featfold``."""

import sys

from pipeline.cli.ending import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
