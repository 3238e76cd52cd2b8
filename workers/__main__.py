"""`python -m workers`."""

from service.leave import leave
from workers.main import main

leave(main())
