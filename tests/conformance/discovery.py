"""Conformance of discovery, plain and aggregated, and of what else every kind has: pages, priorities and namespaces."""

import secrets
from concurrent.futures import ThreadPoolExecutor

from operations import Custom, api_operations
from world import Refused, check, conformance, equal, until

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


def templates(world):
    """Many objects, to be listed in pages; their collection."""
    base = world.path("v1", "podtemplates")
    template = {"spec": {"containers": [{"name": "test", "image": "test2"}]}}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: world.api.create(base, {"metadata": {"name": f"template-{i:04}"}, "template": template}), range(ALL)))
    return base


class Pages:
    """Reads a collection of `templates` page by page, and checks that each goes on where the last one ended."""

    def __init__(self, world, base, found=0, token=""):
        self.world, self.base, self.found, self.token, self.revision = world, base, found, token, None

    def next(self, limit):
        page = self.world.api.get(f"{self.base}?limit={limit}{'&continue=' + self.token if self.token else ''}")
        meta, items = page["metadata"], page["items"]
        check(len(items) <= limit, f"{len(items)} are at most {limit}")
        self.revision = self.revision or meta["resourceVersion"]
        equal(meta["resourceVersion"], self.revision, "the pages are of one revision")
        self.token = meta.get("continue", "")
        wanted = ALL - self.found - len(items) if self.token else None
        equal(meta.get("remainingItemCount"), wanted, "what remains")
        names = [f"template-{self.found + place:04}" for place in range(len(items))]
        equal([one["metadata"]["name"] for one in items], names, "the next")
        self.found += len(items)
        return len(items)


@conformance("[sig-api-machinery] Servers with support for API chunking should return chunks of results for list calls [Conformance]")
def pages(world):
    base = templates(world)
    for _ in range(3):
        read = Pages(world, base)
        read.next(secrets.randbelow(ALL // 10) + 1)
        while read.token:
            read.next(secrets.randbelow(ALL // 10) + 1)
        equal(read.found, ALL, "all pages")
    equal(len(world.api.get(f"{base}?limit={ALL + 1}")["items"]), ALL, "all at once")


@conformance("[sig-api-machinery] Servers with support for API chunking should support continue listing from the last key if the original version has been compacted away, though the list is inconsistent [Slow] [Conformance]", serial=True)
def pages_of_the_past(world):
    base, tenth = templates(world), ALL // 10
    first = Pages(world, base)
    first.next(tenth)
    # Upstream waits for minutes until the token is too old; here much is written, so that what was is forgotten.
    large = world.path("v1", "configmaps", "large")
    world.api.create(world.path("v1", "configmaps"), {"metadata": {"name": "large"}})

    def expired():
        world.api.put(large, {"metadata": {"name": "large"}, "data": {"much": secrets.token_hex(450_000)}})
        try:
            world.api.get(f"{base}?limit={tenth}&continue={first.token}")
        except Refused as refused:
            equal((refused.code, refused.reason), (410, "Expired"), refused.message)
            return refused.status["metadata"]["continue"]
        return None

    rest = Pages(world, base, tenth, until("the token expires", expired))
    equal(rest.next(tenth), tenth, "the second page")
    check(rest.revision != first.revision, "it is of another revision")
    while rest.token:
        rest.next(tenth)
    equal(rest.found, ALL, "all pages")
