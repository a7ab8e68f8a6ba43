"""Connection to the Hugging Face hub."""

import socket
import warnings
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

with warnings.catch_warnings():
    # In a notebook without ipywidgets, tqdm warns as soon as it is imported.
    warnings.filterwarnings("ignore", "IProgress not found")
    from huggingface_hub import constants as constants
    from huggingface_hub import errors as errors
    from huggingface_hub import hf_hub_download as hf_hub_download
    from huggingface_hub import snapshot_download as snapshot_download

_CONNECT_SECONDS = 5
# Default ports, by scheme of the URL.
_PORTS = {"http": 80, "https": 443, "socks4": 1080, "socks5": 1080, "socks5h": 1080}


def is_hub_reachable() -> bool:
    """Return whether the hub, or the proxy configured in the environment, accepts a connection.

    False if the hub's client is set to work offline. Only the connection is tested, so a slow
    network counts as reachable; the hub's client then applies its own timeouts and retries.
    """
    if constants.HF_HUB_OFFLINE:
        return False
    hub = urlsplit(constants.ENDPOINT)
    proxies = {} if proxy_bypass(hub.hostname or "") else getproxies()
    proxy = proxies.get(hub.scheme) or proxies.get("all")
    target = hub if proxy is None else urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    port = target.port or _PORTS.get(target.scheme, 80)
    try:
        socket.create_connection((target.hostname or "", port), _CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def how_to_access(page: str) -> str:
    """Return how to get access to a gated repository.

    Args:
        page: path of its page on the hub, such as `org/name` or `datasets/org/name`.
    """
    return (
        "is gated: the hub gives it only to accounts that were granted access. Request it on "
        f"{constants.ENDPOINT}/{page}, then run `hf auth login`, or set HF_TOKEN to a token of "
        "that account."
    )
