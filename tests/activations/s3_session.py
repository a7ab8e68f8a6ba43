"""Script of `test_s3.py`, run in an environment with s3fs and moto: several writers on S3.

    python -m tests.activations.s3_session FOLDER

It prints the error of an unreachable server.
"""

import multiprocessing
import os
import sys
from pathlib import Path

from probekit.activations.local import LocalFiles
from probekit.activations.object_store import ObjectFiles
from probekit.activations.store import ActivationStore
from probekit.activations.upkeep import caches_in, copy_cache, find_damage, remove_cache, summarize
from probekit.errors import StoreError
from tests.activations.captures import files as bytes_of
from tests.activations.small_store import CONTENT, IDENTITY, SITES

ROOT = "s3://bucket/some/caches"


def write(_):
    """Write the whole store, concurrently with others."""
    return CONTENT.write(ObjectFiles(f"{ROOT}/{IDENTITY.key}"), alone=False).manifest().root


def try_to_create(number):
    """Return whether this writer created an object."""
    return ObjectFiles(f"{ROOT}/race").create("x.json", str(number).encode())


def main(folder: Path) -> None:
    """Start a server, write, race, copy, damage and remove."""
    import boto3  # here, as pytest reads this file where there is none of them
    from moto.server import ThreadedMotoServer
    from s3fs import S3FileSystem

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    boto3.client("s3").create_bucket(Bucket="bucket")
    root = CONTENT.write(LocalFiles(folder / IDENTITY.key)).manifest().root

    assert ObjectFiles(f"{ROOT}/{IDENTITY.key}").is_exclusive
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert sum(pool.map(try_to_create, range(8), chunksize=1)) == 1
        assert pool.map(write, range(2), chunksize=1) == [root, root]

    url = f"{ROOT}/{IDENTITY.key}"
    store = ActivationStore.open(url, root=root)
    assert all((store.read(site) == CONTENT.values[site]).all() for site in SITES)
    assert find_damage(store) == []
    assert caches_in(ROOT) == [url]
    assert summarize(url).age < 1000
    pulled, copied = copy_cache(url, folder / "pulled", pin=root)
    assert copied == 4
    assert bytes_of(pulled.folder) == bytes_of(folder / IDENTITY.key)

    assert remove_cache(url) == []
    assert caches_in(ROOT) == []
    os.environ["AWS_ENDPOINT_URL"] = "http://127.0.0.1:9"
    S3FileSystem.clear_instance_cache()
    try:
        ActivationStore.open("s3://elsewhere/key")
    except StoreError as error:
        sys.stdout.write(str(error))
    server.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
