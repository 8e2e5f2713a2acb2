"""Extract the arguments of Terraform resources from a wheel of cdktn-provider-google: terraform_schema.json.

    python extract_terraform_schema.py cdktn_provider_google-21.1.0-py3-none-any.whl > terraform_schema.json

The wheel (67 MB) holds bindings that are generated from the provider's schema; it is read, never installed. A resource
is {argument: {"required": bool, "block": {...} or null}}; the first key of the file says which version it is from.
"""

import ast
import json
import re
import sys
import zipfile
from typing import Any

RESOURCES = (
    "project_service",
    "storage_bucket",
    "storage_bucket_iam_member",
    "service_account",
    "service_account_iam_member",
    "artifact_registry_repository",
    "artifact_registry_repository_iam_member",
    "compute_network",
    "compute_subnetwork",
    "compute_firewall",
    "compute_router",
    "compute_router_nat",
    "billing_budget",
    "vertex_ai_tensorboard",
    "project_iam_member",
)
# What every resource takes: Terraform's own, not the provider's. depends_on is compared apart.
META = {"connection", "count", "for_each", "lifecycle", "provider", "provisioners", "id", "depends_on"}


def read_resource(source: str) -> dict[str, Any]:
    """Return the arguments of the resource that a module of the wheel defines."""
    classes = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    resource = next(node for node in classes.values() if any("TerraformResource" in ast.unparse(b) for b in node.bases))
    return _arguments(resource, classes)


def _arguments(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> dict[str, Any]:
    init = next(item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__")
    found = {}
    for argument, default in zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True):
        if argument.arg in META:
            continue
        named = [name for name in re.findall(r"'(\w+)'", ast.unparse(argument.annotation)) if name in classes]
        block = _arguments(classes[named[0]], classes) if named else None
        found[argument.arg] = {"required": default is None, "block": block}
    return found


def main(wheel: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        found: dict[str, Any] = {}
        version = date = ""
        for name in RESOURCES:
            path = f"cdktn_provider_google/{name}/__init__.py"
            source = archive.read(path).decode()
            version = re.search(r"hashicorp/google/([0-9.]+)/", source).group(1)
            date = "{:04}-{:02}-{:02}".format(*archive.getinfo(path).date_time)
            found[f"google_{name}"] = read_resource(source)
    source = f"hashicorp/google {version}, from {wheel.rpartition('/')[2]} ({date})"
    print(json.dumps({"source": source, "resources": found}, separators=(",", ":"), sort_keys=True))


if __name__ == "__main__":
    main(sys.argv[1])
