//! `skiff token`: the tokens with which nodes join. They are Secrets that `kubeadm token` reads and writes alike.

use std::{collections::BTreeMap, path::Path, process::ExitCode};

use anyhow::{Context, bail};
use api::rules::bootstrap_token::{self, BootstrapToken, End};
use client::{Api, Client, Kubeconfig, rest::DeleteOptions};
use clock::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};

use crate::{commands::server, control_plane::welcome, flags::options::Token, layout::Layout, reach};

pub fn run(command: Token) -> anyhow::Result<ExitCode> {
    server::runtime()?.block_on(async {
        match command {
            Token::Create { ttl, data_dir } => create(&data_dir, seconds(&ttl)?).await?,
            Token::List { data_dir } => list(&data_dir).await?,
            Token::Delete { token, data_dir } => delete(&data_dir, &token).await?,
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// The cluster of a data folder, as its administrator.
struct Cluster {
    client: Client,
    url: String,
}

impl Cluster {
    fn of(data_dir: &Path) -> anyhow::Result<Self> {
        let path = Layout::new(data_dir).admin_kubeconfig();
        if !path.exists() {
            bail!("no control plane runs for {}; start one with `skiff up` or `skiff server`", data_dir.display());
        }
        let url = Kubeconfig::read(&path)?.first_cluster().and_then(|cluster| cluster.server.clone());
        Ok(Cluster { client: client::from_kubeconfig(&path)?, url: url.unwrap_or_default() })
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), bootstrap_token::NAMESPACE)
    }

    fn explain(&self, error: client::Error) -> anyhow::Error {
        reach::explain(&self.url, &error)
    }
}

/// `90s`, `30m`, `24h`, and several of them in a row, as Go writes durations; a bare 0 is 0.
fn seconds(text: &str) -> anyhow::Result<u64> {
    let wrong = || anyhow::anyhow!("--ttl {text:?} is not a duration such as 30m, 24h or 0");
    if text == "0" {
        return Ok(0);
    }
    let (mut total, mut number) = (0_u64, String::new());
    for c in text.chars() {
        let unit = match c {
            '0'..='9' => {
                number.push(c);
                continue;
            }
            'h' => 3600,
            'm' => 60,
            's' => 1,
            _ => return Err(wrong()),
        };
        let count: u64 = number.parse().map_err(|_| wrong())?;
        total = count.checked_mul(unit).and_then(|s| s.checked_add(total)).ok_or_else(wrong)?;
        number.clear();
    }
    // Ten years are for ever enough, and every date within them can be written.
    if number.is_empty() && total <= 10 * 365 * 24 * 3600 { Ok(total) } else { Err(wrong()) }
}

fn secret(token: &BootstrapToken) -> Secret {
    let mut data = BTreeMap::from([
        ("token-id", token.id.clone()),
        ("token-secret", token.secret.clone()),
        ("usage-bootstrap-authentication", "true".to_owned()),
        ("usage-bootstrap-signing", "true".to_owned()),
        ("auth-extra-groups", welcome::NEWCOMERS.to_owned()),
    ]);
    if let End::At(end) = token.end {
        data.insert("expiration", end.to_string());
    }
    let mut secret = Secret {
        type_: Some(bootstrap_token::SECRET_TYPE.to_owned()),
        string_data: Some(data.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()),
        ..Secret::default()
    };
    secret.metadata.name = Some(bootstrap_token::secret_name(&token.id));
    secret
}

/// Makes a token with which nodes join.
pub async fn issue(secrets: &Api<Secret>, end: End) -> Result<BootstrapToken, client::Error> {
    let token = BootstrapToken {
        id: characters(6),
        secret: characters(16),
        end,
        authenticates: true,
        signs: true,
        groups: Vec::new(),
    };
    secrets.create(&secret(&token)).await?;
    Ok(token)
}

async fn create(data_dir: &Path, ttl: u64) -> anyhow::Result<()> {
    let cluster = Cluster::of(data_dir)?;
    let now = clock::now_seconds().as_second();
    let end = match i64::try_from(ttl).ok().filter(|t| *t > 0).map(|t| Timestamp::from_second(now + t)) {
        None => End::Never,
        Some(at) => End::At(at.context("--ttl ends beyond the calendar")?),
    };
    let token = issue(&cluster.secrets(), end).await.map_err(|e| cluster.explain(e))?;
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), welcome::INFO_NAMESPACE);
    let info = maps.get(welcome::INFO).await.map_err(|e| cluster.explain(e))?;
    let joined = crate::node::join::Info::read(&info)?;
    println!(
        "skiff agent --server {} --token {}.{} --discovery-token-ca-cert-hash {}",
        joined.server,
        token.id,
        token.secret,
        pki::inspect::key_pin(&joined.authority)?
    );
    Ok(())
}

/// Random characters of a token.
fn characters(count: usize) -> String {
    const ALPHABET: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut text = String::new();
    while text.len() < count {
        let mut byte = [0];
        clock::fill_random(&mut byte);
        // Bytes beyond the last whole alphabet would make its first letters likelier.
        if usize::from(byte[0]) < 256 / ALPHABET.len() * ALPHABET.len() {
            text.push(char::from(ALPHABET[usize::from(byte[0]) % ALPHABET.len()]));
        }
    }
    text
}

async fn list(data_dir: &Path) -> anyhow::Result<()> {
    let cluster = Cluster::of(data_dir)?;
    let selected = format!("type={}", bootstrap_token::SECRET_TYPE);
    let secrets = cluster.secrets().list(&[("fieldSelector", &selected)]).await.map_err(|e| cluster.explain(e))?;
    println!("{:<8} {:<22} GROUPS", "TOKEN", "ENDS");
    for token in secrets.iter().filter_map(bootstrap_token::read) {
        let end = match token.end {
            End::Never => "never".to_owned(),
            End::At(at) => at.to_string(),
            End::Unreadable => "unreadable".to_owned(),
        };
        println!("{:<8} {end:<22} {}", token.id, token.groups.join(","));
    }
    Ok(())
}

async fn delete(data_dir: &Path, token: &str) -> anyhow::Result<()> {
    let id = token.split('.').next().unwrap_or_default();
    let cluster = Cluster::of(data_dir)?;
    match cluster.secrets().delete(&bootstrap_token::secret_name(id), DeleteOptions::default()).await {
        Ok(_) => println!("token {id} lets nobody in any more"),
        Err(client::Error::Api(status)) if status.code == 404 => {
            bail!("there is no token {id:?}; `skiff token list` shows those that there are")
        }
        Err(error) => return Err(cluster.explain(error)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let check = |text: &str, expected: Option<u64>| assert_eq!(seconds(text).ok(), expected, "{text}");
        check("24h", Some(86400));
        check("1h30m", Some(5400));
        check("90s", Some(90));
        check("0", Some(0));
        for wrong in ["", "h", "24", "1d", "-1h", "99999999999999999999h", "999999h"] {
            assert_eq!(seconds(wrong).is_err(), !wrong.is_empty(), "{wrong}");
        }
    }

    #[test]
    fn a_new_token_has_the_right_form() {
        let token = format!("{}.{}", characters(6), characters(16));
        assert!(bootstrap_token::split(&token).is_some(), "{token}");
    }
}
