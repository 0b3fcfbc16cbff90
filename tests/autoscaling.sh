#!/usr/bin/env bash
# What nodes and Pods use, as `kubectl top` shows it, and an autoscaler that follows it on a real node.
. "$(dirname "$0")/cluster.sh"

"$SKIFF" "${UP[@]}" >/dev/null
load=$WORK/load
mkdir -p "$load"
sed "s|LOAD|$load|" "$(dirname "$0")/autoscaling.yaml" | k apply -f - >/dev/null
k rollout status deployment/busy --timeout=90s >/dev/null
metrics=/apis/metrics.k8s.io/v1beta1
node=$(k get nodes -o 'jsonpath={.items[0].metadata.name}')

step "kubectl top shows the node and the Pods"
until_true 60 has "$node" k top nodes
until_true 60 has "busy-" k top pods
has " c " k top pods -l app=busy --containers
k get --raw "$metrics/nodes/$node" | grep -q '"window":"' || fail "the interval is told"
has "CPU" k get nodes.metrics.k8s.io
refused "not found" k top pod nobody
has "node_cpu_usage_seconds_total" k get --raw "/api/v1/nodes/$node/proxy/metrics/resource"
has "container_start_time_seconds{container=\"c\",namespace=\"default\"" k get --raw "/api/v1/nodes/$node/proxy/metrics/resource"
has '"workingSetBytes"' k get --raw "/api/v1/nodes/$node/proxy/stats/summary"

step "who may see it"
k create serviceaccount viewer >/dev/null
as=--as=system:serviceaccount:default:viewer
refused "pods.metrics.k8s.io is forbidden" k $as top pods
k create rolebinding viewer --clusterrole=view --serviceaccount=default:viewer >/dev/null
until_true 20 has "busy-" k $as top pods
refused "nodes.metrics.k8s.io is forbidden" k $as top nodes

step "an autoscaler adds Pods under load and removes them without"
share=--cpu-percent=50
k autoscale --help 2>&1 | grep -q -- '--cpu=' && share=--cpu=50%
k autoscale deployment busy "$share" --min=1 --max=3 >/dev/null
k patch hpa busy --type=merge -p '{"spec":{"behavior":{"scaleDown":{"stabilizationWindowSeconds":0}}}}' >/dev/null
until_true 60 k wait --for=condition=ScalingActive hpa/busy --timeout=1s
touch "$load/on"
replicas() { [ "$(k get deployment busy -o 'jsonpath={.spec.replicas}')" = "$1" ]; }
until_true 180 replicas 3
has "cpu resource utilization (percentage of request) above target" k describe hpa busy
has "SuccessfulRescale" k get events --field-selector involvedObject.kind=HorizontalPodAutoscaler
rm "$load/on"
until_true 240 replicas 1
has "All metrics below target" k describe hpa busy
until_true 60 has "ReadyForNewScale" k get hpa busy -o 'jsonpath={.status.conditions[*].reason}'

"$SKIFF" down --data-dir "$DATA" >/dev/null
left=$(traces)
[ -z "$left" ] || fail "skiff down left: $left"
