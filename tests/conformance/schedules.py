"""Conformance of CronJobs and disruption budgets."""

import datetime

from jobs import job, pods
from world import JSON_PATCH, MERGE, check, conformance, equal, named, until

CRON = "batch/v1", "cronjobs"
BUDGETS = "policy/v1", "poddisruptionbudgets"


def cron_job(world, name, script, schedule="*/1 * * * ?", **spec):
    template = {"spec": job(world, name, script, parallelism=1, completions=1)["spec"]}
    template["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
    whole = {"schedule": schedule, "concurrencyPolicy": "Allow", "jobTemplate": template, **spec}
    return {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": name}, "spec": whole}


def created(world, value):
    world.api.create(world.path(*CRON), value)
    return world.path(*CRON, value["metadata"]["name"])


def active(world, path):
    return world.api.get(path)["status"].get("active", [])


def minutes(world, count):
    """The clock of the server has passed so many further minutes: the times at which a Job would have begun."""
    wanted = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=count)
    until("the minute has passed", lambda: datetime.datetime.now(datetime.timezone.utc) > wanted, 60 * count + 30)


@conformance("[sig-apps] CronJob should schedule multiple jobs concurrently [Conformance]")
def concurrent(world):
    path = created(world, cron_job(world, "concurrent", "sleep 300"))
    until("two are active", lambda: len(active(world, path)) >= 2, 180)
    unfinished = [it for it in world.api.get(world.path("batch/v1", "jobs"))["items"]
                  if not any(c["type"] in ("Complete", "Failed") for c in it["status"].get("conditions", []))]
    check(len(unfinished) >= 2, f"two Jobs run beside each other: {named(unfinished)}")
    world.api.delete(path)


@conformance("[sig-apps] CronJob should not schedule jobs when suspended [Slow] [Conformance]")
def suspended(world):
    path = created(world, cron_job(world, "suspended", "sleep 300", suspend=True))
    minutes(world, 1)
    equal(active(world, path), [], "active Jobs")
    equal(world.api.get(world.path("batch/v1", "jobs"))["items"], [], "Jobs")
    world.api.delete(path)


@conformance("[sig-apps] CronJob should not schedule new jobs when ForbidConcurrent [Slow] [Conformance]")
def forbidden(world):
    path = created(world, cron_job(world, "forbidden", "sleep 300", concurrencyPolicy="Forbid"))
    until("one is active", lambda: len(active(world, path)) == 1, 120)
    first = active(world, path)[0]["name"]
    minutes(world, 1)
    equal([it["name"] for it in active(world, path)], [first], "the one that began runs on alone")
    equal(named(world.api.get(world.path("batch/v1", "jobs"))["items"]), [first], "Jobs")
    world.api.delete(path)


@conformance("[sig-apps] CronJob should replace jobs when ReplaceConcurrent [Conformance]")
def replaced(world):
    path = created(world, cron_job(world, "replaced", "sleep 300", concurrencyPolicy="Replace"))
    until("one is active", lambda: len(active(world, path)) == 1, 120)
    first = active(world, path)[0]["name"]
    until("another one is active", lambda: [it["name"] for it in active(world, path)] not in ([], [first]), 120)
    equal(len(active(world, path)), 1, "active Jobs")
    until("the first one is gone", lambda: world.api.is_gone(world.path("batch/v1", "jobs", first)))
    world.api.delete(path)


@conformance("[sig-apps] CronJob should support CronJob API operations [Conformance]")
def cron_job_api(world):
    special = "special-label%3D" + world.ns
    for place, resource in (("/apis/batch/v1", "cronjobs"), ("/apis/batch/v1", "cronjobs/status")):
        check(resource in [it["name"] for it in world.api.get(place)["resources"]], f"{resource} in discovery")
    check("batch" in [it["name"] for it in world.api.get("/apis")["groups"]], "the group in discovery")
    check("v1" in [it["version"] for it in world.api.get("/apis/batch")["versions"]], "the version in discovery")
    base, names = world.path(*CRON), []
    for number in range(3):
        value = cron_job(world, f"api-{number}", "sleep 300", "* */1 * * ?", suspend=True)
        value["metadata"]["labels"] = {"special-label": world.ns}
        names.append(world.api.create(base, value)["metadata"]["name"])
    first = f"{base}/{names[0]}"
    equal(world.api.get(first)["metadata"]["uid"], world.api.get(f"{first}/status")["metadata"]["uid"], "the one that was made")
    listed = world.api.get(f"{base}?labelSelector={special}")
    equal(len(listed["items"]), 3, "in the namespace")
    equal(len(world.api.get(f"/apis/batch/v1/cronjobs?labelSelector={special}")["items"]), 3, "everywhere")
    version = listed["metadata"]["resourceVersion"]
    with world.api.watch(f"{base}?labelSelector={special}", resourceVersion=version) as watch, \
            world.api.watch(f"/apis/batch/v1/cronjobs?labelSelector={special}", resourceVersion=version) as all_watch:
        patched = world.api.patch(first, {"metadata": {"annotations": {"patched": "true"}}}, MERGE)
        equal(patched["metadata"]["annotations"]["patched"], "true", "patched")

        def update(value):
            value["metadata"]["annotations"]["updated"] = "true"

        equal(world.api.change(first, update)["metadata"]["annotations"]["updated"], "true", "updated")
        for seen in (watch, all_watch):
            seen.until("MODIFIED", lambda it: it["metadata"].get("annotations", {}).get("patched") == "true")
            seen.until("MODIFIED", lambda it: it["metadata"].get("annotations", {}).get("updated") == "true")
    moment = "2024-01-01T00:00:00Z"
    status = {"metadata": {"annotations": {"patchedstatus": "true"}}, "status": {"lastScheduleTime": moment, "active": []}}
    patched = world.api.patch(f"{first}/status", status, MERGE)
    equal((patched["status"]["lastScheduleTime"], patched["metadata"]["annotations"]["patchedstatus"]), (moment, "true"), "the status")
    later = "2024-01-01T00:05:00Z"

    def newer(value):
        value["status"]["lastScheduleTime"] = later

    equal(world.api.change(f"{first}/status", newer)["status"]["lastScheduleTime"], later, "the status that was written")
    equal(world.api.get(f"{first}/status")["metadata"]["name"], names[0], "the status that is read")
    world.api.delete(first)
    until("it is gone", lambda: world.api.is_gone(first))
    equal(len(world.api.get(f"{base}?labelSelector={special}")["items"]), 2, "the others")
    world.api.delete(f"{base}?labelSelector={special}")
    until("none is left", lambda: not world.api.get(f"{base}?labelSelector={special}")["items"])


def budget(name, minimum, labels=None, **spec):
    labels = labels or {"foo": "bar"}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name, "labels": labels},
            "spec": {"minAvailable": minimum, "selector": {"matchLabels": labels}, **spec}}


def guarded(world, name, minimum, **spec):
    """Creates a budget, and waits until the controller has seen it."""
    world.api.create(world.path(*BUDGETS), budget(name, minimum, **spec))
    path = world.path(*BUDGETS, name)
    observed(world, path)
    return path


def observed(world, path):
    def is_seen():
        value = world.api.get(path)
        return value["status"].get("observedGeneration", 0) >= value["metadata"]["generation"]

    until("the controller has seen the budget", is_seen)


def guarded_pods(world, count, first=0):
    for number in range(first, first + count):
        world.run(world.pod(f"pod-{number}", labels={"foo": "bar"}))


@conformance("[sig-apps] DisruptionController should create a PodDisruptionBudget [Conformance]")
def budgets_are_changed(world):
    path = guarded(world, "changed", "1%")

    def two(value):
        value["spec"]["minAvailable"] = "2%"

    equal(world.api.change(path, two)["spec"]["minAvailable"], "2%", "updated")
    observed(world, path)
    patched = world.api.patch(path, {"spec": {"minAvailable": "3%"}}, MERGE)
    equal(patched["spec"]["minAvailable"], "3%", "patched")
    observed(world, path)
    world.api.delete(path)
    until("it is gone", lambda: world.api.is_gone(path))


@conformance("[sig-apps] DisruptionController should observe PodDisruptionBudget status updated [Conformance]")
def budgets_are_counted(world):
    path = guarded(world, "counted", 1)
    guarded_pods(world, 3)
    until("disruptions are allowed", lambda: world.api.get(path)["status"].get("disruptionsAllowed", 0) > 0)


@conformance("[sig-apps] DisruptionController should update/patch PodDisruptionBudget status [Conformance]")
def budgets_have_a_status(world):
    path = guarded(world, "status", 1)
    # A Pod wakes the controller, which is not to come between.
    guarded_pods(world, 1)
    until("it is counted", lambda: world.api.get(path)["status"].get("currentHealthy") == 1)
    moment = "2024-01-01T00:00:00Z"

    def disrupt(value):
        value["status"]["disruptedPods"] = {"pod-0": moment}

    updated = world.api.change(f"{path}/status", disrupt)
    check("pod-0" in updated["status"]["disruptedPods"], "updated")
    patch = [{"op": "replace", "path": "/status/disruptedPods", "value": {}}]
    patched = world.api.patch(f"{path}/status", patch, JSON_PATCH)
    equal(patched["status"].get("disruptedPods", {}), {}, "patched")


@conformance("[sig-apps] DisruptionController Listing PodDisruptionBudgets for all namespaces should list and delete a collection of PodDisruptionBudgets [Conformance]")
def budgets_of_everywhere(world):
    special = {"foo_pdb": world.ns}
    other = world.namespace()
    guarded(world, "foo", "1%", labels=special)
    guarded(world, "foo2", "2%", labels=special)
    world.api.create(world.path(*BUDGETS, ns=other), budget("foo3", "3%", labels=special))
    by_label = f"labelSelector=foo_pdb%3D{world.ns}"
    equal(named(world.api.get(f"/apis/policy/v1/poddisruptionbudgets?{by_label}")["items"]), ["foo", "foo2", "foo3"], "everywhere")
    equal(named(world.api.get(f"{world.path(*BUDGETS)}?{by_label}")["items"]), ["foo", "foo2"], "in the namespace")
    world.api.delete(f"{world.path(*BUDGETS)}?{by_label}")
    until("none is left", lambda: not world.api.get(f"{world.path(*BUDGETS)}?{by_label}")["items"])
    equal(named(world.api.get(f"/apis/policy/v1/poddisruptionbudgets?{by_label}")["items"]), ["foo3"], "elsewhere")


@conformance("[sig-apps] DisruptionController should block an eviction until the PDB is updated to allow it [Conformance]")
def evictions_wait(world):
    path = guarded(world, "blocks", 3)
    guarded_pods(world, 3)
    until("all are counted", lambda: world.api.get(path)["status"].get("currentHealthy") == 3)
    pod = "pod-0"
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": world.ns}}
    evict = world.path("v1", "pods", f"{pod}/eviction")
    status = world.api.refuses(429, "POST", evict, eviction)
    equal(status["details"]["causes"][0]["reason"], "DisruptionBudget", "the cause")

    def two(value):
        value["spec"]["minAvailable"] = 2

    world.api.change(path, two)
    until("the eviction passes", lambda: world.api.create(evict, eviction))
    until("the Pod is gone", lambda: world.api.is_gone(world.path("v1", "pods", pod)))
    # The number that is left is the least that there may be.
    until("it is counted", lambda: world.api.get(path)["status"].get("currentHealthy") == 2)
    world.api.patch(path, {"spec": {"minAvailable": 3}}, MERGE)
    observed(world, path)
    guarded_pods(world, 1, first=3)
    eviction["metadata"]["name"] = "pod-1"
    world.api.refuses(429, "POST", world.path("v1", "pods", "pod-1/eviction"), eviction)
    world.api.delete(path)
    until("without the budget it passes", lambda: world.api.create(world.path("v1", "pods", "pod-1/eviction"), eviction))
    until("the other Pod is gone", lambda: world.api.is_gone(world.path("v1", "pods", "pod-1")))
