"""Images that no registry has, as overrides: the configurations in configs/ name none."""

import hashlib


def image(role: str) -> str:
    digest = hashlib.sha256(role.encode()).hexdigest()
    return f"us-central1-docker.pkg.dev/acme-vision/shardline/{role}@sha256:{digest}"


IMAGES = tuple(f"cloud.images.{role}={image(role)}" for role in ("cpu", "gpu"))
# With a model that is registered too.
REGISTERED = (*IMAGES, f"cloud.images.serving={image('triton')}", "register.upload=true")
