"""`python -m api`."""

import sys

from api.main import main

sys.exit(main())
