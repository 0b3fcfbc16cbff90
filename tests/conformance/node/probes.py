"""Upstream's tests of probes that are no conformance: of containers, and the same of sidecars (test/e2e/common/node/container_probe.go).
Delays and periods are shorter than upstream's, and nothing is watched for minutes: what asks counts how often it did."""

from world import IMAGE, check, conformance, equal, until

NAME = "probed"
# A web server: each request starts this with its first line. What is at /tmp/health is its health.
SERVER = r"""
read -r line
while read -r header && [ "$header" != "$(printf '\r')" ]; do :; done
answer() { printf 'HTTP/1.1 %s\r\nLocation: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s' "$1" "$2" "${#3}" "$3"; }
echo asked >&2
case $line in
*local-redirect*) answer '302 Found' /healthz '' ;;
*redirect*) answer '302 Found' http://0.0.0.0/ '<a href="http://0.0.0.0/">Found</a>.' ;;
*) if [ -e /tmp/health ]; then answer '200 OK' '' ok; else answer '500 Internal Server Error' '' ill; fi ;;
esac
"""


def shell(script):
    return ["/bin/sh", "-c", script]


def serves(healthy):
    """Serves on 8080; `healthy` is a command that says how long it is healthy."""
    start = f'printf %s "$1" >/tmp/server; echo ok >/tmp/health; {{ {healthy}; rm -f /tmp/health; }} & exec nc -ll -p 8080 -e /bin/sh /tmp/server'
    return ["/bin/sh", "-c", start, "sh", SERVER]


def asks(script, **more):
    """A probe that counts how often it is asked."""
    return {"exec": {"command": shell(f"echo >>/tmp/asked; {script}")}, "initialDelaySeconds": 1, "periodSeconds": 1, "failureThreshold": 1, **more}


def gets(path, **more):
    probe = {"httpGet": {"path": path, "port": 8080}, "initialDelaySeconds": 2, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 1}
    return {**probe, **more}


class Probed:
    """A Pod with one container that is probed: its only one, or a sidecar."""

    def __init__(self, world, sidecar):
        self.world, self.sidecar, self.path = world, sidecar, world.path("v1", "pods", NAME)

    def create(self, command, spec=None, **probes):
        probed = {"name": "probed", "image": IMAGE, "command": command, **probes}
        # The container beside a sidecar ends as soon as it is asked to.
        pod = self.world.pod(NAME, shell("trap 'exit 0' TERM; while true; do sleep 1; done"), spec)
        if self.sidecar:
            pod["spec"]["initContainers"] = [{**probed, "restartPolicy": "Always"}]
        else:
            pod["spec"]["containers"] = [probed]
        self.world.api.create(self.world.path("v1", "pods"), pod)

    def pod(self):
        return self.world.api.get(self.path)

    def status(self):
        return self.pod()["status"]["initContainerStatuses" if self.sidecar else "containerStatuses"][0]

    def restarts(self):
        return self.status()["restartCount"]

    def is_restarted(self):
        until("a restart", lambda: self.restarts() >= 1)

    def stays(self, count):
        """Nothing restarts it while `count` says less than ten."""
        until("ten probes", lambda: count() >= 10)
        equal(self.restarts(), 0, "restarts")

    def asked(self):
        return int(self.exec("wc -l </tmp/asked || echo 0"))

    def exec(self, script):
        try:
            return self.world.exec(NAME, *shell(script), container="probed")
        except AssertionError as error:
            # The container is not there yet, or ends just now.
            raise KeyError(str(error)) from error

    def served(self):
        return self.world.logs(NAME, "probed").count("asked")

    def is_ready(self):
        return any(each["type"] == "Ready" and each["status"] == "True" for each in self.pod()["status"].get("conditions", []))

    def events(self, reason):
        query = f"fieldSelector=involvedObject.name%3D{NAME},reason%3D{reason}"
        return self.world.api.get(f"{self.world.path('v1', 'events')}?{query}")["items"]


def of_both(name):
    """One test for a container, and one for a sidecar."""

    def add(test):
        for subject in ("container", "restartable init container"):

            def of_one(world, sidecar=subject != "container"):
                test(Probed(world, sidecar))

            of_one.__name__ = f"{test.__name__}_{subject.replace(' ', '_')}"
            conformance(f"[sig-node] Probing {subject} {name}")(of_one)
        return test

    return add


@of_both('should be restarted with a exec "cat /tmp/health" liveness probe (of some seconds)')
def becomes_ill(it):
    it.create(shell("echo ok >/tmp/health; sleep 3; rm -rf /tmp/health; sleep 600"), livenessProbe=asks("cat /tmp/health", timeoutSeconds=5))
    it.is_restarted()


@of_both('should *not* be restarted with a exec "cat /tmp/health" liveness probe (of ten)')
def stays_healthy(it):
    it.create(shell("echo ok >/tmp/health; sleep 600"), livenessProbe=asks("cat /tmp/health", timeoutSeconds=5))
    it.stays(it.asked)


@of_both("should be restarted with a /healthz http liveness probe (of some seconds)")
def serves_no_more(it):
    it.create(serves("sleep 4"), livenessProbe=gets("/healthz"))
    it.is_restarted()


@of_both("should *not* be restarted with a tcp:8080 liveness probe (of ten)")
def is_listened_to(it):
    probe = {**gets("/"), "tcpSocket": {"port": 8080}}
    del probe["httpGet"]
    it.create(serves("true"), livenessProbe=probe)
    it.stays(it.served)


@of_both("should be restarted with an exec liveness probe with timeout")
def probe_takes_too_long(it):
    it.create(shell("sleep 600"), livenessProbe=asks("sleep 10", timeoutSeconds=1))
    it.is_restarted()


@of_both("should not be ready with an exec readiness probe timeout")
def readiness_takes_too_long(it):
    it.create(shell("sleep 600"), readinessProbe=asks("sleep 10", timeoutSeconds=1))
    until("three failures", lambda: it.asked() >= 3 and sum(event.get("count", 1) for event in it.events("Unhealthy")) >= 2)
    check(not it.is_ready(), "the Pod is not ready")
    equal(it.restarts(), 0, "restarts")


@of_both("should be restarted with a failing exec liveness probe that took longer than the timeout")
def failing_probe_takes_too_long(it):
    it.create(shell("sleep 600"), livenessProbe=asks("sleep 10 & exit 1", timeoutSeconds=1))
    it.is_restarted()


@of_both("should be restarted with a local redirect http liveness probe")
def is_led_to_itself(it):
    it.create(serves("sleep 4"), livenessProbe=gets("/local-redirect"))
    it.is_restarted()


@of_both("should *not* be restarted with a non-local redirect http liveness probe")
def is_led_elsewhere(it):
    it.create(serves("true"), livenessProbe=gets("/redirect"))
    it.stays(it.served)
    words = 'Probe terminated redirects, Response body: <a href="http://0.0.0.0/">Found</a>.'
    until("an event", lambda: any(words in event["message"] for event in it.events("ProbeWarning")))


@of_both("should *not* be restarted by liveness probe because startup probe delays it")
def has_not_started(it):
    ill = {"exec": {"command": ["/bin/false"]}, "periodSeconds": 1, "failureThreshold": 1}
    it.create(shell("sleep 600"), livenessProbe=ill, startupProbe=asks("cat /tmp/startup", failureThreshold=600))
    it.stays(it.asked)
    check(not it.status()["started"], "the container has not started")


@of_both("should be restarted by liveness probe after startup probe enables it")
def starts_and_is_ill(it):
    ill = {"exec": {"command": ["/bin/false"]}, "periodSeconds": 1, "failureThreshold": 1}
    started = asks("cat /tmp/startup", failureThreshold=600)
    it.create(shell("sleep 3; echo ok >/tmp/startup; sleep 600"), livenessProbe=ill, startupProbe=started)
    it.is_restarted()


@of_both("should be restarted startup probe fails")
def never_starts(it):
    it.create(shell("sleep 600"), startupProbe=asks("cat /tmp/startup", failureThreshold=3))
    it.is_restarted()


@of_both("should be ready immediately after startupProbe succeeds")
def ready_once_started(it):
    # Readiness is asked for at once when the container has started, and not a period later.
    ready = {"exec": {"command": ["/bin/cat", "/tmp/health"]}, "periodSeconds": 600}
    started = asks("cat /tmp/startup", failureThreshold=600)
    it.create(shell("echo ok >/tmp/health; sleep 3; echo ok >/tmp/startup; sleep 600"), readinessProbe=ready, startupProbe=started)
    until("it is ready", it.is_ready)
    check(it.status()["started"], "the container has started")
    equal(it.restarts(), 0, "restarts")


STUBBORN = "trap '' TERM; while true; do sleep 1; done"


@of_both("should override timeoutGracePeriodSeconds when LivenessProbe field is set")
def grace_of_liveness(it):
    probe = asks("false", terminationGracePeriodSeconds=2)
    it.create(shell(STUBBORN), {"terminationGracePeriodSeconds": 500}, livenessProbe=probe)
    it.world.later(it.world.api.delete, f"{it.path}?gracePeriodSeconds=0")
    it.is_restarted()


@of_both("should override timeoutGracePeriodSeconds when StartupProbe field is set")
def grace_of_startup(it):
    probe = asks("false", terminationGracePeriodSeconds=2)
    it.create(shell(STUBBORN), {"terminationGracePeriodSeconds": 500}, startupProbe=probe)
    it.world.later(it.world.api.delete, f"{it.path}?gracePeriodSeconds=0")
    it.is_restarted()


@of_both("should mark readiness on pods to false and disable liveness probes while pod is in progress of terminating")
def ends_slowly(it):
    script = "trap 'rm -f /tmp/ready /tmp/live; sleep 60; exit 0' TERM; touch /tmp/ready /tmp/live; while true; do sleep 1; done"
    live = {"exec": {"command": ["cat", "/tmp/live"]}, "initialDelaySeconds": 2, "periodSeconds": 1, "failureThreshold": 1}
    it.create(shell(script), {"terminationGracePeriodSeconds": 60}, livenessProbe=live, readinessProbe=asks("cat /tmp/ready"))
    it.world.later(it.world.api.delete, f"{it.path}?gracePeriodSeconds=0")
    until("it is ready", it.is_ready)
    it.world.api.delete(it.path)
    until("it is not ready any more", lambda: not it.is_ready())
    before = it.asked()
    until("some more probes", lambda: it.asked() >= before + 5)
    words = "failed liveness probe"
    check(not any(words in event["message"] for event in it.events("Killing")), "nothing is killed for its liveness")
    equal(it.restarts(), 0, "restarts")
