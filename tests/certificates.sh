#!/usr/bin/env bash
# What signers and rules do for Pods on a real node: trust bundles and certificates as files, a signer made of openssl, and
# containers that restart by rules of their own.
. "$(dirname "$0")/cluster.sh"
command -v openssl >/dev/null || { echo "SKIPPED: the signer of this test is openssl"; exit 0; }

GATES=ClusterTrustBundle=true,ClusterTrustBundleProjection=true,PodCertificateRequest=true,NodeDeclaredFeatures=true,RestartAllContainersOnContainerExits=true
cat >"$WORK/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
tlsMinVersion: VersionTLS12
tlsCipherSuites: [TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305, TLS_RSA_WITH_AES_128_GCM_SHA256]
YAML
"$SKIFF" "${UP[@]}" --feature-gates=$GATES --runtime-config=certificates.k8s.io/v1beta1=true --tls-min-version VersionTLS13 \
    --kubelet-config "$WORK/kubelet.yaml" >/dev/null
k create namespace signed >/dev/null
k() { HOME=$WORK "$KUBECTL" -n signed "$@"; }
until_true 20 k get serviceaccount default

step "old versions of TLS and suites that were not chosen are not spoken"
# speaks PORT ARGUMENT...: whether curl, told to speak like this, is answered at all.
speaks() { curl -sk -o /dev/null "https://127.0.0.1:$1/healthz" "${@:2}"; }
speaks "$PORT" || fail "the API server is not answering"
! speaks "$PORT" --tls-max 1.2 || fail "the API server speaks TLS 1.2"
speaks 20250 --tls-max 1.2 --ciphers ECDHE-ECDSA-CHACHA20-POLY1305 || fail "the kubelet does not speak the suite that was chosen"
! speaks 20250 --tls-max 1.2 --ciphers ECDHE-ECDSA-AES128-GCM-SHA256 || fail "the kubelet speaks a suite that was not chosen"
has "TLS_RSA_WITH_AES_128_GCM_SHA256 is not spoken: it has known weaknesses" cat "$DATA/skiff.log"

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$WORK/ca.key" -out "$WORK/ca.crt" \
    -subj "/CN=our authority" -days 2 2>/dev/null
{
    echo 'apiVersion: certificates.k8s.io/v1beta1'
    echo 'kind: ClusterTrustBundle'
    echo 'metadata: {name: "example.com:ours:v1", labels: {live: "yes"}}'
    echo 'spec:'
    echo '  signerName: example.com/ours'
    echo '  trustBundle: |'
    sed 's/^/    /' "$WORK/ca.crt"
} | k apply -f - >/dev/null

# sign NAME: issues what this request asks for, as of now and for two hours.
sign() {
    local name=$1 at
    k get podcertificaterequest "$name" -o jsonpath='{.spec.pkixPublicKey}' | base64 -d >"$WORK/public.der"
    openssl pkey -pubin -inform DER -in "$WORK/public.der" -out "$WORK/public.pem"
    openssl x509 -new -force_pubkey "$WORK/public.pem" -subj "/CN=$name" -CA "$WORK/ca.crt" -CAkey "$WORK/ca.key" \
        -days 1 -out "$WORK/leaf.crt" 2>/dev/null
    at() { date -u -d "$(openssl x509 -in "$WORK/leaf.crt" -noout "-$1" | cut -d= -f2) $2" +%Y-%m-%dT%H:%M:%SZ; }
    k patch podcertificaterequest "$name" --subresource=status --type=merge -p "$(cat <<JSON
{"status": {"conditions": [{"type": "Issued", "status": "True", "reason": "Test", "message": "",
   "lastTransitionTime": "$(at startdate '')"}],
 "certificateChain": "$(awk '{printf "%s\\n", $0}' "$WORK/leaf.crt")",
 "notBefore": "$(at startdate '')", "beginRefreshAt": "$(at enddate '1 hour ago')", "notAfter": "$(at enddate '')"}}
JSON
)" >/dev/null
}

step "certificates of every type of key, and the authority beside them"
for type in ED25519 ECDSAP256 ECDSAP384 ECDSAP521 RSA3072 RSA4096; do
    name=$(tr '[:upper:]' '[:lower:]' <<<"$type")
    k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $name}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: "skiff.local/busybox:1", command: [sleep, "10000"], volumeMounts: [{name: v, mountPath: /v}]}]
  volumes:
  - name: v
    projected:
      sources:
      - clusterTrustBundle: {signerName: example.com/ours, labelSelector: {matchLabels: {live: "yes"}}, path: ca.pem}
      - podCertificate: {signerName: example.com/ours, keyType: $type, credentialBundlePath: all.pem}
YAML
done
for type in ed25519 ecdsap256 ecdsap384 ecdsap521 rsa3072 rsa4096; do
    request() { k get podcertificaterequests -o jsonpath="{.items[?(@.spec.podName=='$type')].metadata.name}"; }
    until_true 120 eval '[ -n "$(request)" ]'
    has "credential bundle is not issued yet" k get events --field-selector "involvedObject.name=$type,reason=FailedMount"
    sign "$(request)"
done
k wait --for=condition=Ready pod --all --timeout=60s >/dev/null
for type in ed25519 ecdsap256 ecdsap384 ecdsap521 rsa3072 rsa4096; do
        k exec "$type" -- cat /v/all.pem >"$WORK/all.pem"
    k exec "$type" -- cat /v/ca.pem >"$WORK/seen-ca.pem"
    openssl pkey -in "$WORK/all.pem" -pubout -out "$WORK/of-key.pem"
    openssl x509 -in "$WORK/all.pem" -noout -pubkey >"$WORK/of-certificate.pem"
    cmp "$WORK/of-key.pem" "$WORK/of-certificate.pem" || fail "$type: the certificate is for another key"
    openssl verify -CAfile "$WORK/seen-ca.pem" "$WORK/all.pem" >/dev/null || fail "$type: the authority does not vouch for it"
done

step "a request that is denied"
k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: denied}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: "skiff.local/busybox:1", command: [sleep, "10000"], volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, projected: {sources: [{podCertificate: {signerName: example.com/ours, keyType: ED25519, keyPath: key}}]}}]
YAML
request() { k get podcertificaterequests -o jsonpath="{.items[?(@.spec.podName=='denied')].metadata.name}"; }
until_true 30 eval '[ -n "$(request)" ]'
k patch podcertificaterequest "$(request)" --subresource=status --type=merge -p '{"status": {"conditions": [{"type": "Denied",
    "status": "True", "reason": "No", "message": "never", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}' >/dev/null
until_true 30 has 'was denied, reason="No", message="never"' k get events --field-selector involvedObject.name=denied,reason=Denied

step "a container restarts by its own rule until it ends for good"
k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: rules}
spec:
  restartPolicy: Never
  containers:
  - name: c
    image: skiff.local/busybox:1
    command: [sh, -c, 'if [ -e /work/once ]; then exit 3; fi; touch /work/once; exit 42']
    restartPolicy: Never
    restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [42]}}]
    volumeMounts: [{name: work, mountPath: /work}]
  volumes: [{name: work, emptyDir: {}}]
YAML
k wait --for=jsonpath='{.status.phase}'=Failed pod/rules --timeout=60s >/dev/null
[ "$(k get pod rules -o jsonpath='{.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].state.terminated.exitCode}')" = "1 3" ] ||
    fail "it runs twice"

step "all containers of a Pod begin anew when one of them asks for it"
k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: anew}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  initContainers:
  - {name: i, image: "skiff.local/busybox:1", command: [sh, -c, 'echo init >>/work/log'], volumeMounts: [{name: work, mountPath: /work}]}
  containers:
  - name: asks
    image: skiff.local/busybox:1
    command: [sh, -c, 'if [ -e /work/asked ]; then sleep 10000; fi; touch /work/asked; exit 42']
    restartPolicy: Never
    restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [42]}}]
    volumeMounts: [{name: work, mountPath: /work}]
  - {name: follows, image: "skiff.local/busybox:1", command: [sh, -c, 'echo main >>/work/log; exec sleep 10000'], volumeMounts: [{name: work, mountPath: /work}]}
  volumes: [{name: work, emptyDir: {}}]
YAML
counts() { k get pod anew -o jsonpath='{.status.initContainerStatuses[*].restartCount} {.status.containerStatuses[*].restartCount}'; }
until_true 60 eval '[ "$(counts)" = "1 1 1" ]'
k wait --for=condition=Ready pod/anew --timeout=30s >/dev/null
[ "$(k exec anew -c follows -- grep -c init /work/log)" = 2 ] || fail "the init container ran twice, on the volume that stayed"
has "main" k exec anew -c follows -- sed -n '$p' /work/log
