"""How hypothesis makes its examples where queues are compared with a model, and how many.

They are the same in every run, unless an environment variable asks for another number of them.
"""

import os

from hypothesis import HealthCheck, settings


def model_settings(variable: str, usual: int) -> settings:
    """So many examples, or as many as the environment variable says."""
    return settings(
        max_examples=int(os.environ.get(variable, usual)),
        # A backend takes part, so how long an example takes, and how it is made, is not up to the test.
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=variable not in os.environ,
        database=None,
    )
