"""Conformance of the API machinery."""

from world import conformance, equal


@conformance("[sig-api-machinery] Discovery should accurately determine present and missing resources [Conformance]")
def present_and_missing_resources(world):
    present = {resource["name"] for resource in world.api.get("/apis/apps/v1")["resources"]}
    equal("deployments" in present, True, "deployments in discovery")
    equal("nonexistents" in present, False, "nonexistents in discovery")
    world.api.refuses(404, "GET", "/apis/nonexistent.example.com/v1")
    equal("namespaces" in {resource["name"] for resource in world.api.get("/api/v1")["resources"]}, True, "namespaces")
