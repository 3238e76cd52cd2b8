"""`python -m api`."""

from api.main import main
from service.leave import leave

leave(main())
