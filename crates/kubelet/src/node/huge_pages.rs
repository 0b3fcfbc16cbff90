//! Huge pages of the machine: the sizes that there are, how much is set aside in each, the names of a size in the API and in the kernel,
//! and what of them a container, a Pod and all Pods may take.
//! Upstream counterpart: the machine information of cAdvisor, and `maybeSetHugetlb` and `HugePageLimits` of pkg/kubelet/cm.

use std::{fs, io, path::Path};

use api::rules::{
    pod::Resources,
    quantity::{Format, Quantity, parse},
};
use k8s_cri::v1::HugepageLimit;
use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};

use crate::node::cgroup::Cgroups;

/// Where the kernel tells of them.
pub const FOLDER: &str = "/sys/kernel/mm/hugepages";
const PREFIX: &str = "hugepages-";

/// Pages of one size, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HugePages {
    pub page: i64,
    pub bytes: i64,
}

/// All that the kernel tells of in a folder such as [`FOLDER`], the smallest pages first.
pub fn read(folder: &Path) -> Vec<HugePages> {
    let one = |entry: fs::DirEntry| {
        let kib: i64 = entry.file_name().to_str()?.strip_prefix(PREFIX)?.strip_suffix("kB")?.parse().ok()?;
        let count: i64 = fs::read_to_string(entry.path().join("nr_hugepages")).ok()?.trim().parse().ok()?;
        let page = kib.checked_mul(1024).filter(|page| *page > 0)?;
        Some(HugePages { page, bytes: count.checked_mul(page)? })
    };
    let mut all: Vec<HugePages> = fs::read_dir(folder).into_iter().flatten().flatten().filter_map(one).collect();
    all.sort_unstable();
    all
}

/// The resource that stands for pages of a size: `hugepages-2Mi`.
pub fn resource(page: i64) -> String {
    format!("{PREFIX}{}", Quantity::new(page, Format::BinarySi))
}

/// The size of the pages that a resource stands for.
pub fn page_of(resource: &str) -> Option<i64> {
    size(resource.strip_prefix(PREFIX)?)
}

/// The bytes in a size that is written as in the name of a resource.
pub fn size(text: &str) -> Option<i64> {
    text.parse::<Quantity>().ok().map(Quantity::value).filter(|page| *page > 0)
}

/// The name of a size in the names of the kernel's files, which is the engine's as well: `2MB`.
fn unit(page: i64) -> String {
    let (mut number, mut units) = (page, ["B", "KB", "MB", "GB", "TB", "PB"].into_iter());
    let mut unit = units.next().unwrap_or_default();
    while number >= 1024
        && let Some(next) = units.next()
    {
        (number, unit) = (number / 1024, next);
    }
    format!("{number}{unit}")
}

/// How much a list of amounts has of each size that the machine has; none of those that it does not name.
pub fn limits(machine: &[HugePages], amounts: &Resources) -> Vec<HugePages> {
    let of = |page: i64| amounts.iter().find(|(name, _)| page_of(name) == Some(page)).map_or(0, |(_, q)| q.value());
    machine.iter().map(|pages| HugePages { page: pages.page, bytes: of(pages.page).max(0) }).collect()
}

/// The most that a container may take of each size, as the engine is told. Where its Pod has a limit and it has none of its own, the
/// Pod's counts for it too.
pub fn of_container(machine: &[HugePages], spec: &PodSpec, container: &Container) -> Vec<HugepageLimit> {
    let amounts = |needs: Option<&ResourceRequirements>| -> Resources {
        let list = needs.and_then(|needs| needs.limits.as_ref()).into_iter().flatten();
        list.map(|(name, amount)| (name.clone(), parse(amount))).collect()
    };
    let mut most = amounts(spec.resources.as_ref());
    most.extend(amounts(container.resources.as_ref()));
    let limit = |pages: HugePages| HugepageLimit {
        page_size: unit(pages.page),
        limit: u64::try_from(pages.bytes).unwrap_or_default(),
    };
    limits(machine, &most).into_iter().map(limit).collect()
}

/// Keeps a cgroup that is there to these amounts. A kernel that does not count huge pages by cgroups bounds none.
pub fn bound(cgroups: &Cgroups, path: &str, most: &[HugePages]) -> io::Result<()> {
    most.iter().try_for_each(|pages| cgroups.bound_huge_pages(path, &unit(pages.page), pages.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::fixture::pod;

    const MIB: i64 = 1 << 20;

    fn machine() -> Vec<HugePages> {
        vec![HugePages { page: 2 * MIB, bytes: 64 * MIB }, HugePages { page: 1024 * MIB, bytes: 0 }]
    }

    #[test]
    fn the_kernel_tells_which_there_are() {
        let folder = tempfile::tempdir().unwrap();
        for (name, count) in [("1048576kB", "0"), ("2048kB", "32"), ("64kB", "x"), ("0kB", "1"), ("kB", "1")] {
            let pages = folder.path().join(format!("{PREFIX}{name}"));
            fs::create_dir(&pages).unwrap();
            fs::write(pages.join("nr_hugepages"), format!("{count}\n")).unwrap();
        }
        assert_eq!(read(folder.path()), machine());
        assert_eq!(read(&folder.path().join("none")), []);
    }

    #[test]
    fn a_size_has_a_name_in_the_api_and_one_in_the_kernel() {
        for (page, name, in_kernel) in [
            (64 << 10, "hugepages-64Ki", "64KB"),
            (2 * MIB, "hugepages-2Mi", "2MB"),
            (32 * MIB, "hugepages-32Mi", "32MB"),
            (1024 * MIB, "hugepages-1Gi", "1GB"),
        ] {
            assert_eq!((resource(page), unit(page), page_of(name)), (name.into(), in_kernel.into(), Some(page)));
        }
        assert_eq!(page_of("hugepages-2048Ki"), Some(2 * MIB));
        for name in ["memory", "hugepages-", "hugepages-x", "hugepages-0", "hugepages--1"] {
            assert_eq!(page_of(name), None, "{name}");
        }
    }

    #[test]
    fn a_container_takes_no_more_than_its_limits_and_none_without() {
        let check = |of_pod: &str, of_container: &str, expected: [u64; 2]| {
            let desired = pod(&format!(
                r#"{{"resources": {{"limits": {of_pod}}}, "containers": [{{"name": "c", "resources": {{"limits": {of_container}}}}}]}}"#
            ));
            let told = super::of_container(&machine(), desired.spec(), &desired.spec().containers[0]);
            let told = told.into_iter().map(|limit| (limit.page_size, limit.limit));
            let expected = ["2MB", "1GB"].map(str::to_owned).into_iter().zip(expected);
            assert!(told.eq(expected), "{of_pod} {of_container}");
        };
        check("{}", "{}", [0, 0]);
        check("{}", r#"{"hugepages-2Mi": "4Mi", "hugepages-64Ki": "64Ki", "memory": "1Gi"}"#, [4 << 20, 0]);
        check(r#"{"hugepages-1Gi": "2Gi", "hugepages-2Mi": "8Mi"}"#, r#"{"hugepages-2Mi": "4Mi"}"#, [4 << 20, 2 << 30]);
    }

    #[test]
    fn both_versions_of_cgroups_are_bounded_where_they_count() {
        let amounts = |text: &str| -> Resources { [("hugepages-2Mi".to_owned(), text.parse().unwrap())].into() };
        let most = limits(&machine(), &amounts("4Mi"));
        let tree = tempfile::tempdir().unwrap();
        let at = |file: &str| tree.path().join(file);
        let read = |file: &str| fs::read_to_string(at(file)).ok();
        fs::create_dir_all(at("hugetlb/p")).unwrap();
        let one = Cgroups::new(tree.path(), "/");
        bound(&one, "/p", &most).unwrap();
        bound(&one, "/q", &most).unwrap();
        assert_eq!(read("hugetlb/p/hugetlb.2MB.limit_in_bytes").as_deref(), Some("4194304"));
        assert_eq!(read("hugetlb/p/hugetlb.1GB.limit_in_bytes").as_deref(), Some("0"));
        assert_eq!(read("hugetlb/p/hugetlb.2MB.rsvd.limit_in_bytes"), None, "this kernel has no such file");
        assert!(!at("hugetlb/q").exists());
        fs::create_dir_all(at("p")).unwrap();
        fs::write(at("cgroup.controllers"), "cpu hugetlb").unwrap();
        fs::write(at("p/cgroup.controllers"), "cpu memory").unwrap();
        let two = Cgroups::new(tree.path(), "/");
        bound(&two, "/p", &most).unwrap();
        assert_eq!(read("p/hugetlb.2MB.max"), None, "nobody counts them there");
        fs::write(at("p/cgroup.controllers"), "cpu hugetlb memory\n").unwrap();
        fs::write(at("p/hugetlb.1GB.rsvd.max"), "max").unwrap();
        bound(&two, "/p", &most).unwrap();
        let files =
            ["hugetlb.2MB.max", "hugetlb.1GB.max", "hugetlb.1GB.rsvd.max"].map(|name| read(&format!("p/{name}")));
        assert_eq!(files.map(Option::unwrap), ["4194304", "0", "0"]);
    }
}
