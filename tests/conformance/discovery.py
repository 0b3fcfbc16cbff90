"""Conformance of discovery, plain and aggregated, and of what else every kind has: pages, priorities and namespaces."""

import secrets
from concurrent.futures import ThreadPoolExecutor

from operations import Custom, api_operations
from world import check, conformance, equal, until

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
# What a client says that takes the older forms too.
CLIENT = f"{AGGREGATED},{AGGREGATED.replace('v2', 'v2beta1')},application/json"
BUILT_IN = {
    ("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations"), ("apiextensions.k8s.io", "v1", "customresourcedefinitions"),
    ("apiregistration.k8s.io", "v1", "apiservices"), ("apps", "v1", "deployments"), ("authentication.k8s.io", "v1", "tokenreviews"),
    ("authorization.k8s.io", "v1", "selfsubjectaccessreviews"), ("autoscaling", "v1", "horizontalpodautoscalers"),
    ("autoscaling", "v2", "horizontalpodautoscalers"), ("batch", "v1", "jobs"), ("certificates.k8s.io", "v1", "certificatesigningrequests"),
    ("coordination.k8s.io", "v1", "leases"), ("discovery.k8s.io", "v1", "endpointslices"), ("events.k8s.io", "v1", "events"),
    ("networking.k8s.io", "v1", "ingresses"), ("node.k8s.io", "v1", "runtimeclasses"), ("policy", "v1", "poddisruptionbudgets"),
    ("scheduling.k8s.io", "v1", "priorityclasses"), ("storage.k8s.io", "v1", "csinodes"),
}
CORE = {("", "v1", "namespaces")}


def told(world, path, accept=AGGREGATED):
    """The group, version and name of every resource that the document tells of."""
    document = world.api.get(path, accept=accept)
    equal((document["kind"], document["apiVersion"]), ("APIGroupDiscoveryList", "apidiscovery.k8s.io/v2"), path)
    return {
        (group["metadata"].get("name", ""), version["version"], resource["resource"])
        for group in document["items"] for version in group["versions"] for resource in version["resources"]
    }


@conformance("[sig-api-machinery] AggregatedDiscovery should support raw aggregated discovery endpoint Accept headers [Conformance]")
def aggregated(world):
    equal(BUILT_IN - told(world, "/apis"), set(), "not told of at /apis")
    equal(CORE - told(world, "/api"), set(), "not told of at /api")


@conformance("[sig-api-machinery] AggregatedDiscovery should support aggregated discovery interface [Conformance]")
def as_clients_ask(world):
    found = told(world, "/apis", CLIENT) | told(world, "/api", CLIENT)
    equal((BUILT_IN | CORE) - found, set(), "not told of")


@conformance("[sig-api-machinery] AggregatedDiscovery should support raw aggregated discovery request for CRDs [Conformance]")
def aggregated_custom(world):
    kind = Custom(world)
    until("the kind is told of", lambda: (kind.group, "v1", kind.plural) in told(world, "/apis"))


@conformance("[sig-api-machinery] AggregatedDiscovery should support aggregated discovery interface for CRDs [Conformance]")
def custom_as_clients_ask(world):
    kind = Custom(world)
    until("the kind is told of", lambda: (kind.group, "v1", kind.plural) in told(world, "/apis", CLIENT))


@conformance("[sig-api-machinery] Discovery should locate the groupVersion and a resource within each APIGroup [Conformance]", serial=True)
def each_group(world):
    groups = world.api.get("/apis")["groups"]
    known = {group for group, _, _ in BUILT_IN}
    equal(known - {group["name"] for group in groups}, set(), "groups")
    for group in groups:
        for version in group["versions"]:
            name = version["groupVersion"]
            equal(name, f"{group['name']}/{version['version']}", "groupVersion")
            listed = world.api.get(f"/apis/{name}")
            equal(listed["groupVersion"], name, "groupVersion of the resources")
            if group["name"] in known and version["version"] == "v1":
                check(listed["resources"], f"{name} has resources")
                check(all(one["name"] and one["kind"] and "verbs" in one for one in listed["resources"]), f"{name}: {listed['resources']}")


@conformance("[sig-api-machinery] API priority and fairness should support FlowSchema API operations [Conformance]")
def flow_schema(world):
    subject = {"kind": "User", "user": {"name": "example-e2e-non-existent-user"}}
    rule = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": True}
    spec = {
        "matchingPrecedence": 10000, "priorityLevelConfiguration": {"name": "global-default"},
        "distinguisherMethod": {"type": "ByUser"}, "rules": [{"subjects": [subject], "resourceRules": [rule]}],
    }
    api_operations(
        world, "flowcontrol.apiserver.k8s.io", "flowschemas", {"spec": spec},
        {"spec": {"matchingPrecedence": 9999}}, {"spec": {"matchingPrecedence": 9000}}, status={},
    )


@conformance("[sig-api-machinery] API priority and fairness should support PriorityLevelConfiguration API operations [Conformance]")
def priority_level(world):
    def shares(number):
        return {"spec": {"limited": {"nominalConcurrencyShares": number}}}

    spec = {"type": "Limited", "limited": {"nominalConcurrencyShares": 2, "limitResponse": {"type": "Reject"}}}
    api_operations(world, "flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations", {"spec": spec}, shares(4), shares(6), status={})


ALL = 400


@conformance("[sig-api-machinery] Servers with support for API chunking should return chunks of results for list calls [Conformance]")
def pages(world):
    base = world.path("v1", "podtemplates")
    template = {"spec": {"containers": [{"name": "test", "image": "test2"}]}}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: world.api.create(base, {"metadata": {"name": f"template-{i:04}"}, "template": template}), range(ALL)))
    for _ in range(3):
        found, token, revision = 0, "", None
        while True:
            limit = secrets.randbelow(ALL // 10) + 1
            page = world.api.get(f"{base}?limit={limit}{'&continue=' + token if token else ''}")
            check(len(page["items"]) <= limit, f"{len(page['items'])} are at most {limit}")
            revision = revision or page["metadata"]["resourceVersion"]
            equal(page["metadata"]["resourceVersion"], revision, "the pages are of one revision")
            token = page["metadata"].get("continue", "")
            left = page["metadata"].get("remainingItemCount")
            equal(left, ALL - found - len(page["items"]) if token else None, "what remains")
            for item in page["items"]:
                equal(item["metadata"]["name"], f"template-{found:04}", "the next")
                found += 1
            if not token:
                break
        equal(found, ALL, "all pages")
    equal(len(world.api.get(f"{base}?limit={ALL + 1}")["items"]), ALL, "all at once")
