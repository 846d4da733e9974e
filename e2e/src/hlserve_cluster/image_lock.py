"""A lock read for the Python of an image, which need not be the one that reads it. Pure."""

from collections.abc import Iterator

from packaging.markers import Marker, default_environment


def for_python(lock: str, version: str) -> str:
    """The requirements of a lock that some release of Python `version` (such as 3.11) wants, without their markers.

    pip decides by the Python that it runs on, and a base image may have another release: Debian's 3.11.2 wants what 3.11.7 does not.
    """
    return "\n".join(_kept(lock.splitlines(), version)) + "\n"


def _kept(lines: list[str], version: str) -> Iterator[str]:
    wanted = True
    for line in lines:
        if line.startswith((" ", "\t")):
            if wanted:
                yield line
            continue
        requirement, _, condition = line.partition(" ; ")
        marker = condition.removesuffix("\\").strip()
        wanted = not marker or any(Marker(marker).evaluate(each) for each in _environments(version))
        if wanted:
            yield line if not marker else requirement + (" \\" if line.endswith("\\") else "")


def _environments(version: str) -> Iterator[dict[str, str]]:
    """The first release of a version and one after its last."""
    for release in (0, 99):
        environment = {name: str(value) for name, value in default_environment().items()}
        environment["python_version"] = version
        environment["python_full_version"] = environment["implementation_version"] = f"{version}.{release}"
        yield environment
