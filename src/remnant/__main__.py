"""`python -m remnant` is the command `remnant`."""

import sys

from remnant.cli import main

sys.exit(main())
