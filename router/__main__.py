"""`python -m router`: the same as the command `gnatswarm`."""

import sys

from router.cli import main

sys.exit(main())
