"""`python -m gnatswarm`: the same as the command `gnatswarm`."""

import sys

from gnatswarm.router.cli import main

sys.exit(main())
