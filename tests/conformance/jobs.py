"""Conformance of Jobs."""

from world import JSON_PATCH, MERGE, STRATEGIC, check, conformance, equal, named, until

JOBS = "batch/v1", "jobs"


def job(world, name, script, **spec):
    """A Job whose Pods run a script of the shell, which finds its index in $JOB_COMPLETION_INDEX."""
    template = {"metadata": {"labels": {"job": name}}}
    template["spec"] = {**world.pod("", ["sh", "-c", script])["spec"], "restartPolicy": spec.pop("restart", "Never")}
    whole = {"parallelism": 2, "completions": 4, "backoffLimit": 6, "template": template, **spec}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": whole}


def created(world, value):
    world.api.create(world.path(*JOBS), value)
    return world.path(*JOBS, value["metadata"]["name"])


def pods(world, name):
    return world.api.get(world.path("v1", "pods") + f"?labelSelector=job%3D{name}")["items"]


def condition(value, kind):
    found = [c for c in value["status"].get("conditions", []) if c["type"] == kind and c["status"] == "True"]
    return found[0] if found else None


def waits_for(world, path, kind, reason=None):
    """The Job with a condition, which is there for this reason."""
    found = until(f"the Job is {kind}", lambda: (lambda value: value if condition(value, kind) else None)(world.api.get(path)))
    if reason is not None:
        equal(condition(found, kind)["reason"], reason, kind)
    return found


def running(world, name, count):
    def all_run():
        found = [p for p in pods(world, name) if p["status"].get("phase") == "Running" and "deletionTimestamp" not in p["metadata"]]
        return found if len(found) == count else None

    return until(f"{count} Pods of {name} run", all_run)


@conformance("[sig-apps] Job should create pods for an Indexed job with completion indexes and specified hostname [Conformance]")
def indexed(world):
    value = job(world, "indexed-job", "test -n \"$JOB_COMPLETION_INDEX\"", completionMode="Indexed")
    path = created(world, value)
    equal(waits_for(world, path, "Complete")["status"]["succeeded"], 4, "succeeded")
    indexes = []
    for pod in pods(world, "indexed-job"):
        if pod["status"]["phase"] == "Succeeded":
            index = pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]
            equal(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"], index, "the label")
            equal(pod["spec"]["hostname"], f"indexed-job-{index}", "the hostname")
            indexes.append(int(index))
    equal(sorted(indexes), [0, 1, 2, 3], "indexes")


@conformance("[sig-apps] Job should allow to use the pod failure policy on exit code to fail the job early [Conformance]")
def fails_early(world):
    rule = {"action": "FailJob", "onExitCodes": {"containerName": "main", "operator": "In", "values": [1]}}
    value = job(world, "fails-early", "test $JOB_COMPLETION_INDEX != 0", completionMode="Indexed", podFailurePolicy={"rules": [rule]})
    path = created(world, value)
    failed = waits_for(world, path, "Failed", "PodFailurePolicy")
    equal(condition(failed, "FailureTarget")["reason"], "PodFailurePolicy", "FailureTarget")
    equal(failed["status"].get("failed", 0) >= 1, True, "failed Pods")


@conformance("[sig-apps] Job should allow to use a pod failure policy to ignore failure matching on DisruptionTarget condition [Conformance]")
def ignores_disruptions(world):
    # A Pod that finds the mark of one before it ends well.
    claim = {"volumes": [{"name": "marks", "hostPath": {"path": f"/tmp/{world.ns}", "type": "DirectoryOrCreate"}}]}
    script = "[ -e /marks/$JOB_COMPLETION_INDEX ] && exit 0; touch /marks/$JOB_COMPLETION_INDEX; sleep 10000"
    rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    value = job(world, "disrupted", script, parallelism=2, completions=4, backoffLimit=0, completionMode="Indexed",
                podFailurePolicy={"rules": [rule]})
    spec = value["spec"]["template"]["spec"]
    spec.update(claim)
    probe = {"exec": {"command": ["sh", "-c", "test -e /marks/$JOB_COMPLETION_INDEX"]}, "periodSeconds": 1}
    spec["containers"][0].update(volumeMounts=[{"name": "marks", "mountPath": "/marks"}], readinessProbe=probe)
    path = created(world, value)
    evicted = set()

    def all_evicted():
        for pod in pods(world, "disrupted"):
            index = pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]
            name = pod["metadata"]["name"]
            ready = [c for c in pod["status"].get("conditions", []) if c["type"] == "Ready" and c["status"] == "True"]
            if ready and index not in evicted:
                eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": world.ns}}
                world.api.create(world.path("v1", "pods", f"{name}/eviction"), eviction)
                evicted.add(index)
        return len(evicted) == 4

    until("each index was evicted once", all_evicted)
    status = waits_for(world, path, "Complete")["status"]
    equal((status["succeeded"], status.get("failed", 0)), (4, 0), "what was counted")
    cleaner = world.pod("cleaner", ["rm", "-rf", f"/host/{world.ns}"], spec={
        "restartPolicy": "Never", "volumes": [{"name": "host", "hostPath": {"path": "/tmp"}}]},
        container={"volumeMounts": [{"name": "host", "mountPath": "/host"}]})
    world.run(cleaner, "Succeeded")


@conformance("[sig-apps] Job should execute all indexes despite some failing when using backoffLimitPerIndex [Conformance]")
def fails_for_odd_indexes(world):
    value = job(world, "odd-fail", "exit $((JOB_COMPLETION_INDEX % 2))", completionMode="Indexed", backoffLimitPerIndex=1, backoffLimit=None)
    path = created(world, value)
    status = waits_for(world, path, "Failed", "FailedIndexes")["status"]
    equal(status["failedIndexes"], "1,3", "failedIndexes")
    equal(status["completedIndexes"], "0,2", "completedIndexes")
    equal((status["failed"], status["succeeded"]), (4, 2), "failed and succeeded")


@conformance("[sig-apps] Job should mark indexes as failed when the FailIndex action is matched in podFailurePolicy [Conformance]")
def fails_an_index(world):
    rule = {"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [1]}}
    value = job(world, "fail-index", "exit $((JOB_COMPLETION_INDEX % 2))", completions=2, completionMode="Indexed",
                backoffLimitPerIndex=1, backoffLimit=None, podFailurePolicy={"rules": [rule]})
    path = created(world, value)
    status = waits_for(world, path, "Failed", "FailedIndexes")["status"]
    equal((status["failedIndexes"], status["completedIndexes"]), ("1", "0"), "indexes")
    equal((status["failed"], status["succeeded"]), (1, 1), "without a second try")


@conformance("[sig-apps] Job should terminate job execution when the number of failed indexes exceeds maxFailedIndexes [Conformance]")
def fails_with_too_many_indexes(world):
    # The first index outlives the others.
    script = "[ $JOB_COMPLETION_INDEX = 0 ] && sleep 10000; exit 1"
    value = job(world, "max-failed", script, parallelism=4, completionMode="Indexed", backoffLimitPerIndex=0, maxFailedIndexes=0,
                backoffLimit=None)
    path = created(world, value)
    status = waits_for(world, path, "Failed", "MaxFailedIndexesExceeded")["status"]
    check(status["failedIndexes"], "an index failed")
    equal((status.get("completedIndexes", ""), status.get("succeeded", 0)), ("", 0), "nothing is complete")
    until("nothing runs on", lambda: not [p for p in pods(world, "max-failed") if p["status"].get("phase") in ("Pending", "Running")])


@conformance("[sig-apps] Job with successPolicy should succeeded when all indexes succeeded [Conformance]")
def succeeds_with_all_indexes(world):
    value = job(world, "all", "true", completionMode="Indexed", successPolicy={"rules": [{"succeededIndexes": "0-3"}]})
    done = waits_for(world, created(world, value), "Complete")
    equal(condition(done, "SuccessCriteriaMet")["reason"], "SuccessPolicy", "SuccessCriteriaMet")
    equal((done["status"]["completedIndexes"], done["status"]["succeeded"]), ("0-3", 4), "complete")


def some_succeed(world, name, rule):
    """A Job of five whose first index alone ends."""
    script = "[ $JOB_COMPLETION_INDEX = 0 ] || sleep 10000"
    value = job(world, name, script, parallelism=4, completions=5, completionMode="Indexed", successPolicy={"rules": [rule]})
    done = waits_for(world, created(world, value), "Complete", "SuccessPolicy")
    equal(condition(done, "SuccessCriteriaMet")["reason"], "SuccessPolicy", "SuccessCriteriaMet")
    status = done["status"]
    equal((status["completedIndexes"], status["succeeded"]), ("0", 1), "complete")
    equal((status.get("active", 0), status.get("terminating", 0), status.get("ready", 0)), (0, 0, 0), "nothing runs on")


@conformance("[sig-apps] Job with successPolicy succeededIndexes rule should succeeded even when some indexes remain pending [Conformance]")
def succeeds_with_an_index(world):
    some_succeed(world, "by-index", {"succeededIndexes": "0"})


@conformance("[sig-apps] Job with successPolicy succeededCount rule should succeeded even when some indexes remain pending [Conformance]")
def succeeds_with_a_count(world):
    some_succeed(world, "by-count", {"succeededCount": 1})


@conformance("[sig-apps] Job should apply changes to a job status [Conformance]")
def status(world):
    path = created(world, job(world, "status", "sleep 10000", completions=2))
    running(world, "status", 2)
    until("the status tells of them", lambda: world.api.get(path)["status"].get("ready") == 2)
    own = {"type": "CustomConditionType", "status": "True", "lastTransitionTime": "2024-01-01T00:00:00Z"}
    change = {"metadata": {"annotations": {"patchedstatus": "true"}}, "status": {"conditions": [own]}}
    patched = world.api.patch(f"{path}/status", change, MERGE)
    equal(patched["metadata"]["annotations"]["patchedstatus"], "true", "the annotation")
    check(condition(patched, "CustomConditionType"), "the condition that was patched")

    def other(value):
        for item in value["status"]["conditions"]:
            if item["type"] == own["type"]:
                item.update(status="False", reason="E2E", message="Set from an e2e test")

    updated = world.api.change(f"{path}/status", other)
    found = [c for c in updated["status"]["conditions"] if c["type"] == own["type"]]
    equal([(c["status"], c["reason"], c["message"]) for c in found], [("False", "E2E", "Set from an e2e test")], "updated")
    read = world.api.get(f"{path}/status")
    equal(read["metadata"]["uid"], updated["metadata"]["uid"], "the same Job")


@conformance("[sig-apps] Job should manage the lifecycle of a job [Conformance]")
def lifecycle(world):
    label = world.unique("e2e-job")
    value = job(world, "lifecycle", "true", suspend=True)
    version = world.api.get(world.path(*JOBS) + f"?labelSelector=e2e-job%3D{label}")["metadata"]["resourceVersion"]
    value["metadata"]["labels"] = {"e2e-job": label}
    path = created(world, value)
    with world.api.watch(world.path(*JOBS) + f"?labelSelector=e2e-job%3D{label}", resourceVersion=version) as watch:
        watch.until("ADDED")
        patched = world.api.patch(path, {"metadata": {"labels": {"patched": "true"}}}, STRATEGIC)
        equal(patched["metadata"]["labels"]["patched"], "true", "the label")
        watch.until("MODIFIED", lambda it: it["metadata"]["labels"].get("patched") == "true")

        def annotate(it):
            it["metadata"].setdefault("annotations", {})["updated"] = "true"

        world.api.change(path, annotate)
        watch.until("MODIFIED", lambda it: it["metadata"].get("annotations", {}).get("updated") == "true")
        equal(world.api.get(path)["spec"]["suspend"], True, "suspended")
        everywhere = world.api.get(f"/apis/batch/v1/jobs?labelSelector=e2e-job%3D{label}")["items"]
        equal([it["metadata"]["annotations"]["updated"] for it in everywhere], ["true"], "in all namespaces")
        begun = world.api.patch(path, [{"op": "replace", "path": "/spec/suspend", "value": False}], JSON_PATCH)
        equal(begun["spec"]["suspend"], False, "it goes on")
        options = {"propagationPolicy": "Background"}
        world.api.delete(world.path(*JOBS) + f"?labelSelector=e2e-job%3D{label}", options)
        watch.until("DELETED", lambda it: named([it]) == ["lifecycle"])
    until("its Pods go", lambda: not pods(world, "lifecycle"))
