//! Counting what the objects of a quota's namespace use: from the caches, from the server, or only their number.

use std::{collections::BTreeSet, sync::Arc};

use api::rules::{
    pod::Resources,
    quantity::{Format, Quantity},
    quota::{Counter, Usage, scopes, total},
};
use client::{
    Api, Caches, Client, Kind,
    rest::{self, Form, Resource},
};
use clock::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::{PersistentVolumeClaim, Pod, ResourceQuota, Service},
        resource::v1::ResourceClaim,
    },
    apimachinery::pkg::apis::meta::v1::APIGroup,
};

use super::{Limit, extended::Facts};

/// How many objects of another server are asked for at once, where it does not say how many there are, and how often.
const PAGE: &str = "500";
const PAGES_MAX: usize = 2000;

pub fn namespace(quota: &ResourceQuota) -> &str {
    quota.metadata.namespace.as_deref().unwrap_or("")
}

fn sum<K: Usage>(
    quota: &ResourceQuota,
    counter: &Counter,
    limited: &[Limit<'_>],
    objects: &[Arc<K>],
    now: Timestamp,
) -> Resources {
    let names: BTreeSet<&str> = limited.iter().filter(|(_, of, ..)| of == counter).map(|(name, ..)| *name).collect();
    let scopes = quota.spec.as_ref().map(scopes).unwrap_or_default();
    total(objects.iter().map(|object| &**object as &dyn Usage), &scopes, &names, now)
}

/// The use of all kinds of which there is a cache.
pub fn cached(quota: &ResourceQuota, limited: &[Limit<'_>], caches: &Caches, now: Timestamp) -> Resources {
    fn of<K: Kind + Usage>(
        quota: &ResourceQuota,
        counter: Counter,
        limited: &[Limit<'_>],
        caches: &Caches,
        now: Timestamp,
    ) -> Resources {
        if !limited.iter().any(|(_, of, ..)| *of == counter) {
            return Resources::new();
        }
        sum(quota, &counter, limited, &caches.of::<K>().list_in(namespace(quota)), now)
    }
    let mut used = of::<Pod>(quota, Counter::Pods, limited, caches, now);
    used.extend(of::<Service>(quota, Counter::Services, limited, caches, now));
    used.extend(of::<PersistentVolumeClaim>(quota, Counter::VolumeClaims, limited, caches, now));
    used.extend(of::<ResourceClaim>(quota, Counter::DeviceClaims, limited, caches, now));
    used
}

/// The use of one kind as the server has it.
pub async fn live(
    quota: &ResourceQuota,
    counter: &Counter,
    limited: &[Limit<'_>],
    client: &Client,
) -> Result<Resources, client::Error> {
    async fn of<K: Kind + Usage>(
        quota: &ResourceQuota,
        counter: &Counter,
        limited: &[Limit<'_>],
        client: &Client,
    ) -> Result<Resources, client::Error> {
        let objects = Api::<K>::namespaced(client.clone(), namespace(quota)).list(&[]).await?;
        let objects: Vec<Arc<K>> = objects.into_iter().map(Arc::new).collect();
        Ok(sum(quota, counter, limited, &objects, clock::now()))
    }
    match counter {
        Counter::Pods => of::<Pod>(quota, counter, limited, client).await,
        Counter::Services => of::<Service>(quota, counter, limited, client).await,
        Counter::VolumeClaims => of::<PersistentVolumeClaim>(quota, counter, limited, client).await,
        Counter::DeviceClaims => of::<ResourceClaim>(quota, counter, limited, client).await,
        Counter::Objects { .. } => Ok(Resources::new()),
    }
}

/// The use by Pods as the server has it, with what claims use of these extended resources.
pub async fn live_extended(
    quota: &ResourceQuota,
    limited: &[Limit<'_>],
    names: &BTreeSet<&str>,
    client: &Client,
) -> Result<Resources, client::Error> {
    let pods = Api::<Pod>::namespaced(client.clone(), namespace(quota)).list(&[]).await?;
    let pods: Vec<Arc<Pod>> = pods.into_iter().map(Arc::new).collect();
    let now = clock::now();
    let mut used = sum(quota, &Counter::Pods, limited, &pods, now);
    Facts::live(namespace(quota), pods, client).await?.add(names, &mut used, now);
    Ok(used)
}

/// The resource in the group's preferred version; `None` when the server has no such group.
pub async fn resource(client: &Client, group: &str, plural: &str) -> Result<Option<Resource>, client::Error> {
    let mut version = "v1".to_owned();
    if !group.is_empty() {
        let Some(text) = rest::found(rest::read(client, &format!("/apis/{group}"), Form::Whole).await)? else {
            return Ok(None);
        };
        let group: APIGroup = serde_json::from_slice(&text).map_err(client::Error::Decode)?;
        let Some(preferred) = group.preferred_version.or_else(|| group.versions.into_iter().next()) else {
            return Ok(None);
        };
        version = preferred.version;
    }
    let kind = plural.to_owned();
    Ok(Some(Resource { group: group.to_owned(), version, kind, plural: plural.to_owned() }))
}

/// How many objects of a resource the namespace has, by one look at the first; `None` when the server has no such
/// resource. Scopes are for Pods and claims: no other object is in one.
pub async fn objects(
    quota: &ResourceQuota,
    group: &str,
    plural: &str,
    client: &Client,
) -> Result<Option<Quantity>, client::Error> {
    if quota.spec.as_ref().is_some_and(|spec| !scopes(spec).is_empty()) {
        return Ok(Some(Quantity::ZERO));
    }
    let Some(resource) = resource(client, group, plural).await? else { return Ok(None) };
    let place = resource.path(namespace(quota), "", "");
    let mut path = format!("{place}?limit=1");
    let mut counted = 0_i64;
    for _ in 0..PAGES_MAX {
        let Some(text) = rest::found(rest::read(client, &path, Form::Metadata).await)? else { return Ok(None) };
        let page = rest::page(&text)?;
        counted = counted.saturating_add(i64::try_from(page.items.len()).unwrap_or(i64::MAX));
        let next = page.metadata.continue_.unwrap_or_default();
        match page.metadata.remaining_item_count {
            // Not every server says how many are left.
            None if !next.is_empty() => {
                path = rest::with_query(place.clone(), &[("limit", PAGE), ("continue", &next)]);
            }
            more => return Ok(Some(Quantity::new(counted.saturating_add(more.unwrap_or(0)), Format::DecimalSi))),
        }
    }
    Ok(Some(Quantity::new(counted, Format::DecimalSi)))
}
