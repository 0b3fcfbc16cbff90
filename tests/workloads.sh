#!/usr/bin/env bash
# The workload kinds with the real kubectl: rolled out, paused by partitions, taken back; Jobs that complete and fail, by
# hand and by the clock.
. "$(dirname "$0")/cluster.sh"

"$SKIFF" "${UP[@]}" >/dev/null
k apply -f "$(dirname "$0")/workloads.yaml" >/dev/null

# says TEXT COMMAND...: the command's output is the text.
values() { k get pods -l "app=$1" -o jsonpath='{.items[*].spec.containers[0].env[0].value}'; }
# Changes the template of KIND/NAME, takes it back, and looks at the history.
there_and_back() { # KIND NAME
    local which=$1/$2
    k rollout status "$which" --timeout=90s >/dev/null
    k set env "$which" V=two >/dev/null
    k rollout status "$which" --timeout=120s >/dev/null
    until_true 30 every_pod "$2" two
    k rollout history "$which" | grep -c '^[0-9]' | grep -qx 2 || fail "$which has two revisions"
    has "two" k rollout history "$which" --revision=2
    k rollout undo "$which" >/dev/null
    k rollout status "$which" --timeout=120s >/dev/null
    until_true 30 every_pod "$2" one
}
every_pod() { # APP VALUE
    local all
    all=$(values "$1")
    [ -n "$all" ] && [ -z "$(tr ' ' '\n' <<<"$all" | grep -vx "$2")" ]
}

step "a Deployment, a StatefulSet and a DaemonSet are rolled out and taken back"
there_and_back deployment web
there_and_back statefulset db
there_and_back daemonset agent

step "a StatefulSet has ordinals, hostnames, an order and a partition"
says "db-0 db-1 db-2" k get pods -l app=db --sort-by=.metadata.name -o 'jsonpath={.items[*].metadata.name}'
[ "$(k exec db-1 -- hostname)" = db-1 ] || fail "the Pod calls itself db-1"
k patch statefulset db -p '{"spec":{"updateStrategy":{"rollingUpdate":{"partition":2}}}}' >/dev/null
k set env statefulset/db V=three >/dev/null
until_true 60 says "one one three" k get pods -l app=db --sort-by=.metadata.name -o 'jsonpath={.items[*].spec.containers[0].env[0].value}'
k scale statefulset db --replicas=1 >/dev/null
until_true 60 says db-0 k get pods -l app=db -o 'jsonpath={.items[*].metadata.name}'

step "a DaemonSet keeps to its nodes"
k patch daemonset agent -p '{"spec":{"template":{"spec":{"nodeSelector":{"role":"edge"}}}}}' >/dev/null
until_true 60 says "0 0" k get daemonset agent -o 'jsonpath={.status.desiredNumberScheduled} {.status.currentNumberScheduled}'
k label node --all role=edge >/dev/null
k rollout status daemonset/agent --timeout=60s >/dev/null

step "a ReplicationController keeps its Pods"
k scale rc old --replicas=2 >/dev/null
until_true 30 says 2 k get rc old -o 'jsonpath={.status.readyReplicas}'

step "Jobs complete, fail, are indexed, suspended and cleaned up"
k wait --for=condition=Complete job/three --timeout=60s >/dev/null
[ "$(k get job three -o 'jsonpath={.status.succeeded}')" = 3 ] || fail "three Pods succeeded"
k wait --for=condition=Complete job/indexed --timeout=60s >/dev/null
[ "$(k get job indexed -o 'jsonpath={.status.completedIndexes}')" = 0-2 ] || fail "all indexes are complete"
has "index 1" k logs -l batch.kubernetes.io/job-completion-index=1
k wait --for=condition=Failed job/broken --timeout=90s >/dev/null
has "BackoffLimitExceeded" k get job broken -o 'jsonpath={.status.conditions[*].reason}'
has "BackoffLimitExceeded" k describe job broken
k wait --for=condition=Suspended job/later --timeout=30s >/dev/null
k patch job later -p '{"spec":{"suspend":false}}' >/dev/null
k wait --for=condition=Complete job/later --timeout=60s >/dev/null
until_true 60 refused "not found" k get job gone

step "a CronJob makes Jobs, and one by hand"
k create job --from=cronjob/tick now >/dev/null
k wait --for=condition=Complete job/now --timeout=60s >/dev/null
until_true 90 has "tick-" k get jobs -o name
has SuccessfulCreate k get events --field-selector involvedObject.kind=CronJob

"$SKIFF" down --data-dir "$DATA" >/dev/null
left=$(traces)
[ -z "$left" ] || fail "skiff down left: $left"
