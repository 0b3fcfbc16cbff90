//! emptyDir: a folder that lives as long as its Pod, on the node's disk, in memory or in huge pages.

use files::Dir;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Pod, Volume};

use crate::{
    affinity::requests,
    node::huge_pages,
    pod::spec::{quota::Cfs, resources},
    volumes::{
        directory,
        error::{VolumeError, file_error},
        folder::blocking,
        plugin::{Mounted, Plugin, Request},
    },
};

/// How much a volume in memory holds: what its Pod may take, if that is limited, and never more than the node has for Pods; less
/// where the volume says so. `None` is the kernel's own limit.
fn most(allocatable: i64, of_pod: Option<i64>, of_volume: Option<i64>) -> Option<u64> {
    let limits = [Some(allocatable), of_pod, of_volume].into_iter().flatten().filter(|bytes| *bytes > 0);
    limits.min().and_then(|bytes| u64::try_from(bytes).ok())
}

/// Where the files are kept.
#[derive(Debug, PartialEq)]
enum Medium {
    Disk,
    Memory,
    /// The size of a page, in bytes.
    HugePages(i64),
}

/// The medium that a volume names. The size of huge pages is one that the Pod asks for, and the only one unless the volume names it.
fn medium(name: &str, pod: &Pod) -> Result<Medium, String> {
    let sized = match name {
        "" => return Ok(Medium::Disk),
        "Memory" => return Ok(Medium::Memory),
        "HugePages" => None,
        _ => {
            let page = name.strip_prefix("HugePages-").ok_or_else(|| format!("unknown storage medium {name:?}"))?;
            Some(huge_pages::size(page).ok_or_else(|| format!("medium {name}: {page:?} is no size of a page"))?)
        }
    };
    let of_containers = requests::containers(pod).filter_map(|container| container.resources.as_ref());
    let of_pod = pod.spec.iter().filter_map(|spec| spec.resources.as_ref());
    let requests = of_containers.chain(of_pod).flat_map(|needs| needs.requests.iter().flatten());
    let mut pages: Vec<i64> = requests.filter_map(|(name, _)| huge_pages::page_of(name)).collect();
    pages.retain(|page| sized.is_none_or(|sized| sized == *page));
    pages.sort_unstable();
    pages.dedup();
    match pages[..] {
        [] => {
            Err(format!("medium {name}: hugePages storage requested, but there is no resource request for huge pages"))
        }
        [page] => Ok(Medium::HugePages(page)),
        _ => Err(format!("medium: {name} can't be used if container requests multiple huge page sizes")),
    }
}

/// Everybody may write, into what is in memory as into the machine's own `/tmp`: each user removes their own files alone.
fn mode(medium: &Medium, has_group: bool) -> u32 {
    let sticky = if *medium == Medium::Memory { 0o1000 } else { 0 };
    let group = if has_group { 0o2000 } else { 0 };
    sticky | group | 0o777
}

pub struct EmptyDir;

impl Plugin for EmptyDir {
    fn name(&self) -> &'static str {
        "empty-dir"
    }

    fn takes(&self, volume: &Volume) -> bool {
        volume.empty_dir.is_some()
    }

    /// Files that are in it already stay.
    fn mount<'a>(&'a self, request: &'a Request<'a>) -> BoxFuture<'a, Result<Mounted, VolumeError>> {
        let path = request.folder.volume(self.name(), &request.volume.name);
        let source = request.volume.empty_dir.clone().unwrap_or_default();
        let (group, mounter) = (request.fs_group(), request.means.mounter.clone());
        let limit = source.size_limit.as_ref().map(|q| api::rules::quantity::parse(q).value());
        let of_pod = request.pod.spec.as_ref().and_then(|spec| resources::of_pod(spec, Cfs::default()).memory);
        let medium = medium(source.medium.as_deref().unwrap_or_default(), request.pod);
        let size = most(request.means.facts.memory_bytes, of_pod, limit);
        Box::pin(blocking(move || {
            let medium = medium.map_err(VolumeError::Medium)?;
            directory::make(&path)?;
            let failed = file_error(&path);
            match &medium {
                Medium::Disk => {}
                Medium::Memory => mounter.in_memory(&path, size).map_err(&failed)?,
                Medium::HugePages(page) => mounter.in_huge_pages(&path, *page).map_err(&failed)?,
            }
            let folder = Dir::open(&path).map_err(&failed)?;
            if let Some(group) = group {
                folder.set_group(group).map_err(&failed)?;
            }
            folder.set_mode(mode(&medium, group.is_some())).map_err(&failed)?;
            Ok(Mounted { path, relabel: true, ..Mounted::default() })
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_are_of_a_size_that_the_pod_asks_for() {
        let check = |medium: &str, requests: [&str; 2], expected: Result<Medium, &str>| {
            let of = |list: &str| format!(r#"{{"name": "c", "resources": {{"requests": {list}}}}}"#);
            let spec = format!(r#"{{"containers": [{}], "initContainers": [{}]}}"#, of(requests[0]), of(requests[1]));
            let got = super::medium(medium, &crate::pod::fixture::pod(&spec).pod);
            assert_eq!(got, expected.map_err(str::to_owned), "{medium} {requests:?}");
        };
        let (small, great) = (r#"{"hugepages-2Mi": "4Mi"}"#, r#"{"hugepages-1Gi": "1Gi"}"#);
        check("", [small, "{}"], Ok(Medium::Disk));
        check("Memory", ["{}", "{}"], Ok(Medium::Memory));
        check("HugePages", [small, "{}"], Ok(Medium::HugePages(2 << 20)));
        check("HugePages", [small, small], Ok(Medium::HugePages(2 << 20)));
        check("HugePages", ["{}", great], Ok(Medium::HugePages(1 << 30)));
        check("HugePages-1Gi", [small, great], Ok(Medium::HugePages(1 << 30)));
        check("HugePages-2048Ki", [small, great], Ok(Medium::HugePages(2 << 20)));
        let many = "medium: HugePages can't be used if container requests multiple huge page sizes";
        check("HugePages", [small, great], Err(many));
        check("HugePages", [small, r#"{"hugepages-1Gi": "1Gi", "hugepages-2Mi": "4Mi"}"#], Err(many));
        let none = "medium HugePages-1Gi: hugePages storage requested, but there is no resource request for huge pages";
        check("HugePages-1Gi", [small, "{}"], Err(none));
        check("Tape", [small, "{}"], Err("unknown storage medium \"Tape\""));
        check("HugePages-", [small, "{}"], Err("medium HugePages-: \"\" is no size of a page"));
    }

    #[test]
    fn everybody_writes_into_it() {
        let modes =
            [Medium::Disk, Medium::Memory, Medium::HugePages(2 << 20)].map(|m| (mode(&m, false), mode(&m, true)));
        assert_eq!(modes, [(0o777, 0o2777), (0o1777, 0o3777), (0o777, 0o2777)]);
    }

    #[test]
    fn memory_is_limited_by_volume_pod_and_node() {
        for (limits, expected) in [
            ((100, None, None), Some(100)),
            ((100, Some(50), None), Some(50)),
            ((100, Some(50), Some(70)), Some(50)),
            ((100, Some(50), Some(20)), Some(20)),
            ((100, Some(150), Some(120)), Some(100)),
            ((100, None, Some(0)), Some(100)),
            ((0, None, None), None),
        ] {
            assert_eq!(most(limits.0, limits.1, limits.2), expected, "{limits:?}");
        }
    }
}
