"""The Ray cluster that is there. Needs the package ``ray`` (the extra of the same name)."""

from typing import Any

from nacre.errors import NacreError
from nacre.utils.packages import need


def join_cluster(wanted_by: str) -> Any:
    """Join the cluster; return the package.

    Args:
        wanted_by: the option that asks for it.

    Raises:
        NacreError: there is none.
    """
    ray = need("ray", "ray")
    try:
        ray.init(
            address="auto",
            log_to_driver=False,
            logging_level="ERROR",
            ignore_reinit_error=True,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise NacreError(
            f"{wanted_by}: there is no Ray cluster here ({reason}); `ray start --head` makes one "
            "of this machine, RAY_ADDRESS names another"
        ) from error
    return ray
