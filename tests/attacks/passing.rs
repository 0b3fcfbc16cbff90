//! The parts of a request that are passed on to a Pod: not the caller's credentials, and not to where no Pod is.

use std::net::{IpAddr, UdpSocket};

use json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::{caller::Caller, server::Server};

/// An address of this machine that a Pod could have: none on loopback. (Connecting a UDP socket sends nothing.)
pub fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

/// A Pod that answers every request with the request's own head.
async fn echo(listener: TcpListener) {
    while let Ok((mut socket, _)) = listener.accept().await {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let Ok(byte) = socket.read_u8().await else { break };
            head.push(byte);
        }
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", head.len());
        let _ = socket.write_all(&[answer.as_bytes(), &head].concat()).await;
    }
}

async fn pod(admin: &Caller, name: &str, address: &str) {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let mut pod: Value = admin.create("/api/v1/namespaces/default/pods", &pod).await.expect(201).json();
    pod["status"] = json!({"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]});
    admin.replace(&format!("/api/v1/namespaces/default/pods/{name}/status"), &pod).await.expect(200);
}

#[tokio::test]
async fn credentials_do_not_travel_on() {
    let Some(address) = own_address() else {
        eprintln!("SKIPPED: this machine has no address but loopback, where no Pod may be");
        return;
    };
    let server = Server::start().await;
    let listener = TcpListener::bind((address, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(echo(listener));
    pod(&server.admin(), "p", &address.to_string()).await;
    server.allow("jane", "default", &["get"], &["pods/proxy"]).await;
    let path = format!("/api/v1/namespaces/default/pods/p:{port}/proxy/x?y=z");
    let encoded = "base64url.bearer.authorization.k8s.io.amFuZS10b2tlbg";
    let protocols = format!("v4.channel.k8s.io, {encoded}");
    let secrets = [
        ("x-remote-user", "root"),
        ("x-remote-group", "system:masters"),
        ("x-remote-extra-scopes", "all"),
        ("proxy-authorization", "Basic cm9vdA=="),
        ("x-own", "kept"),
    ];
    let bearer = server.user("jane").get(&path).await.expect(200).text().to_lowercase();
    assert!(bearer.starts_with("get /x?y=z http/1.1") && !bearer.contains("jane"), "{bearer}");
    let mut headers = vec![("sec-websocket-protocol", protocols.as_str())];
    headers.extend(secrets);
    let head = server.user("jane").send("GET", &path, &headers, "").await.expect(200).text().to_lowercase();
    assert!(head.contains("sec-websocket-protocol: v4.channel.k8s.io\r\n") && head.contains("x-own: kept"), "{head}");
    for secret in ["amfuz", "bearer", "x-remote", "authorization", "root"] {
        assert!(!head.contains(secret), "{secret} in {head}");
    }
    // The user as whom somebody acts is nobody else's business either.
    let headers = [("impersonate-user", "jane"), ("impersonate-group", "people")];
    let head = server.admin().send("GET", &path, &headers, "").await.expect(200).text().to_lowercase();
    assert!(!head.contains("impersonate") && !head.contains("jane"), "{head}");
}

/// A WebSocket of a Pod's own is passed on as it is, through the Pod and through its Service; what comes behind the handshake is
/// the two ends' business.
#[tokio::test]
async fn websockets_of_pods_pass_both_ways() {
    let Some(address) = own_address() else {
        eprintln!("SKIPPED: this machine has no address but loopback, where no Pod may be");
        return;
    };
    let server = Server::start().await;
    let listener = TcpListener::bind((address, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(socket.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap().to_lowercase();
                assert!(head.contains("upgrade: websocket\r\n") && head.contains("sec-websocket-key: k\r\n"), "{head}");
                let accepted = b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n";
                socket.write_all(accepted).await.unwrap();
                // Until the client has said all, then everything goes back.
                let mut said = Vec::new();
                socket.read_to_end(&mut said).await.unwrap();
                socket.write_all(&said).await.unwrap();
            });
        }
    });
    let admin = server.admin();
    pod(&admin, "p", &address.to_string()).await;
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
        "spec": {"ports": [{"port": 80, "targetPort": port}]}});
    admin.create("/api/v1/namespaces/default/services", &service).await.expect(201);
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "s-1", "labels": {"kubernetes.io/service-name": "s"}},
        "endpoints": [{"addresses": [address.to_string()], "conditions": {"ready": true}}], "ports": [{"name": "", "port": port}]});
    admin.create("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", &slice).await.expect(201);
    for place in [format!("pods/p:{port}"), "services/s:80".to_owned()] {
        let mut stream = admin.connect("http/1.1").await.unwrap();
        let head = format!(
            "GET /api/v1/namespaces/default/{place}/proxy/ws HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: k\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(stream.read_u8().await.unwrap());
        }
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 101 "), "{place}: {answer}");
        let sent: Vec<u8> = (0..1 << 20).map(|n: u32| n as u8).collect();
        stream.write_all(&sent).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut back = Vec::new();
        stream.read_to_end(&mut back).await.unwrap();
        assert!(back == sent, "{place}: {} bytes of {}", back.len(), sent.len());
    }
}

#[tokio::test]
async fn nothing_is_dialled_where_no_pod_is() {
    let server = Server::start().await;
    let admin = server.admin();
    for (i, address) in ["127.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "fe80::1"]
        .iter()
        .enumerate()
    {
        let name = format!("p{i}");
        pod(&admin, &name, address).await;
        let answer = admin.get(&format!("/api/v1/namespaces/default/pods/{name}:{}/proxy/", server.port)).await;
        assert_eq!(answer.expect(400).message(), "address not allowed", "{address}");
        let endpoints = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": name},
            "subsets": [{"addresses": [{"ip": address}], "ports": [{"port": 80}]}]});
        admin.create("/api/v1/namespaces/default/endpoints", &endpoints).await.expect(422);
        let family = if address.contains(':') { "IPv6" } else { "IPv4" };
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": name},
            "addressType": family, "endpoints": [{"addresses": [address]}], "ports": []});
        admin.create("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", &slice).await.expect(422);
    }
    for (i, host) in ["127.0.0.1", "localhost"].iter().enumerate() {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("n{i}")},
            "status": {"addresses": [{"type": "InternalIP", "address": host}]}});
        admin.create("/api/v1/nodes", &node).await.expect(201);
        let answer = admin.get(&format!("/api/v1/nodes/n{i}:{}/proxy/", server.port)).await;
        assert_eq!(answer.expect(400).message(), "address not allowed", "{host}");
    }
}

/// Whoever may ask one node's kubelet something does not ask the API server in its own name, wherever the node says that it listens.
#[tokio::test]
async fn a_node_that_says_it_is_the_api_server_opens_nothing() {
    let server = Server::start().await;
    let node = server.node("evil").await;
    server.allow("mallory", "", &["get", "create"], &["nodes/proxy"]).await;
    let mallory = server.user("mallory");
    for host in ["127.0.0.1", "localhost"] {
        let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": host}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": server.port}}}});
        node.patch("merge", "/api/v1/nodes/evil/status", status.to_string()).await.expect(200);
        let path = "/api/v1/nodes/evil/proxy/api/v1/namespaces/kube-system/secrets";
        let answer = mallory.get(path).await;
        assert_eq!(answer.code, 401, "{host}: {}", answer.text());
        let path = "/api/v1/nodes/evil/proxy/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let answer =
            mallory.create(path, &json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})).await;
        assert_eq!(answer.code, 401, "{host}: {}", answer.text());
    }
}
