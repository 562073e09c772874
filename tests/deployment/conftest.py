"""What the engine tests share."""

import pytest
import ray


@pytest.fixture(scope="session", autouse=True)
def one_ray():
    """One Ray for all simulations of this process: Flower stops it after each, and every start takes seconds."""
    shutdown = ray.shutdown
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray, "shutdown", lambda *args, **kwargs: None)
        yield
    shutdown()
