"""Chooses the store of shared limits that the settings name, and couples a process's limits to it."""

import os
import socket

from hlserve_router.errors import StartError
from hlserve_router.limit_store import LimitStore, StoreAddress, StoreError, store_address
from hlserve_router.limit_store_pod import VARIABLE, PodStore
from hlserve_router.limit_store_sqlite import SqliteStore
from hlserve_router.limit_store_valkey import ValkeyStore
from hlserve_router.limit_sync import LimitSync, new_holder
from hlserve_router.limits import Limits
from hlserve_router.metrics import Metrics
from hlserve_router.settings import Settings


def open_store(settings: Settings) -> LimitStore | None:
    """The store, not yet connected; None: this process is alone with its limits. Raises StartError."""
    address = store_address(settings.limits_store)
    timeout = settings.limits_store_timeout_seconds
    if address.kind == "sqlite":
        return _open_file(address, timeout)
    if address.kind == "valkey":
        return ValkeyStore(address.target, timeout, _password(settings))
    inherited = os.environ.get(VARIABLE, "")
    return PodStore(socket.socket(fileno=int(inherited))) if inherited.isdigit() else None


def _open_file(address: StoreAddress, timeout_seconds: float) -> SqliteStore:
    """A server that is away may come back; a file that is none of ours never becomes one."""
    store = SqliteStore(address.target, timeout_seconds)
    try:
        store.check()
    except StoreError as error:
        raise StartError(
            f"--limits-store {address}: {error}: name a file that this process may write, in a folder that it may write, "
            "and that is new or a limits store already."
        ) from error
    return store


def _password(settings: Settings) -> str | None:
    file = settings.limits_store_password_file
    if file is None:
        return None
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise StartError(f"--limits-store-password-file {file} cannot be read: {why}.") from error


def share_limits(limits: Limits, metrics: Metrics, settings: Settings) -> LimitSync | None:
    """Lets `limits` share by the store of the settings; None: there is none. Raises StartError."""
    store = open_store(settings)
    if store is None:
        return None
    holder = new_holder()
    limits.share(holder, settings.workers)
    address = str(store_address(settings.limits_store))
    shown = "this pod's supervisor" if isinstance(store, PodStore) else address
    return LimitSync(
        limits,
        store,
        holder,
        metrics,
        shown,
        settings.limits_store_timeout_seconds,
        settings.limits_store_retry_seconds,
    )
