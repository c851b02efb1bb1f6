"""`python -m loopway` is the `loopway` command. It must not know more than that."""

import sys

from loopway.cli import main

if __name__ == "__main__":
    sys.exit(main())
