"""The statuses that watchers see of Pods that fail at once and are deleted on their way: none goes back, none tells of what never
was (test/e2e/node/pods.go)."""

from concurrent.futures import ThreadPoolExecutor

from world import IMAGE, Refused, check, conformance

STATUS = "[sig-node] Pods Extended Pod Container Status should never report"
ENDED = ("Succeeded", "Failed")
WORKERS, ATTEMPTS = 3, 5


class Seen:
    """What was seen of one Pod: its containers appeared, one of them ended, the Pod did."""

    def __init__(self):
        self.inits = self.containers = self.ended = self.over = self.runs = False
        self.pod = None

    def next(self, pod):
        self.pod, status = pod, pod["status"]
        name, wants_inits = pod["metadata"]["name"], bool(pod["spec"].get("initContainers"))
        inits, containers = status.get("initContainerStatuses", []), status.get("containerStatuses", [])
        if wants_inits and not inits:
            check(not self.inits, f"{name} forgot its init containers")
            return
        self.inits = wants_inits
        check(len(inits) == wants_inits, f"{name} has init containers {inits}")
        if not containers:
            check(not self.containers, f"{name} forgot its containers")
            return
        self.containers = True
        check(len(containers) == 1, f"{name} has containers {containers}")
        every = {each["name"]: each for each in inits + containers}
        blocked = every.get("blocked")
        if blocked:
            started = blocked.get("started") or "terminated" in blocked.get("lastState", {}) or "waiting" not in blocked["state"]
            check(not started, f"{name} started a container behind one that failed: {blocked}")
        self.state(name, every["fail"]["state"])
        check(not self.over or status["phase"] in ENDED, f"{name} was over and is {status['phase']}")
        self.over = status["phase"] in ENDED

    def state(self, name, state):
        terminated = state.get("terminated")
        if self.ended:
            check(terminated and "waiting" not in state and "running" not in state, f"{name} had ended and has {state}")
        self.runs = "waiting" not in state and not terminated
        if not terminated:
            return
        self.ended = True
        code, reason = terminated["exitCode"], terminated.get("reason")
        killed = code == 137 and reason in ("ContainerStatusUnknown", "Error")
        check(code == 1 or killed, f"{name} ended with {terminated}")
        check(not terminated.get("finishedAt") or terminated.get("startedAt"), f"{name} ended before it began: {terminated}")

    def last(self):
        name, status = self.pod["metadata"]["name"], self.pod["status"]
        if not self.over:
            running = [each["name"] for each in status.get("containerStatuses", []) if "running" in each["state"]]
            check(not running, f"{name} went with running containers {running}")
            check(status["phase"] == "Pending", f"{name} was {status['phase']} and had no running containers")
        check(not self.runs, f"{name} went with {status.get('containerStatuses')}")


def failing(world, name, with_init):
    fail = {"name": "fail", "image": IMAGE, "command": ["/bin/false"]}
    blocked = {"name": "blocked", "image": IMAGE, "command": ["/bin/true"]}
    for each in (fail, blocked):
        each["resources"] = {"requests": {"cpu": "5m", "memory": "10Mi"}}
    pod = world.pod(name, spec={"restartPolicy": "Never", "terminationGracePeriodSeconds": 1})
    pod["spec"]["containers"] = [blocked if with_init else fail]
    if with_init:
        pod["spec"]["initContainers"] = [fail]
    return pod


def watched_to_its_end(world, worker, attempt, with_init):
    """Deletes the Pod behind so many events as there were attempts: upstream waits for some of two seconds instead."""
    name = f"pod-terminate-status-{worker}-{attempt}"
    pods, seen = world.path("v1", "pods"), Seen()
    created = world.api.create(pods, failing(world, name, with_init))
    begin = created["metadata"]["resourceVersion"]
    with world.api.watch(pods, resourceVersion=begin, fieldSelector=f"metadata.name={name}") as watch:
        deleted, events = False, 0
        while True:
            if not deleted and (events >= attempt or seen.over):
                deleted = True
                try:
                    world.api.delete(f"{pods}/{name}")
                except Refused as refused:
                    check(refused.code == 404, refused.message)
            event = watch.next()
            events += 1
            check(event["type"] in ("MODIFIED", "DELETED"), f"{event}")
            seen.next(event["object"])
            if event["type"] == "DELETED":
                break
    seen.last()


def repeatedly(world, with_init):
    def work(worker):
        for attempt in range(ATTEMPTS):
            watched_to_its_end(world, worker, attempt, with_init)

    with ThreadPoolExecutor(WORKERS) as pool:
        for done in [pool.submit(work, worker) for worker in range(WORKERS)]:
            done.result()


@conformance(f"{STATUS} success for a pending container")
def no_success_of_what_waits(world):
    repeatedly(world, with_init=False)


@conformance(f"{STATUS} container start when an init container fails")
def no_start_behind_a_failure(world):
    repeatedly(world, with_init=True)
