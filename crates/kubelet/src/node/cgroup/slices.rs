//! The names that cgroups have where systemd keeps them: slices, each of which names all those above it. Pure.
//! Upstream counterpart: pkg/kubelet/cm/cgroup_manager_linux.go.

const ENDING: &str = ".slice";

/// The place of the slice with these parts, such as `/kubepods.slice/kubepods-burstable.slice`.
pub fn path<'a>(parts: impl Iterator<Item = &'a str>) -> String {
    let (mut name, mut path) = (String::new(), String::new());
    for part in parts {
        if !name.is_empty() {
            name.push('-');
        }
        // A part of its own would begin behind each dash.
        name.push_str(&part.replace('-', "_"));
        path = format!("{path}/{name}{ENDING}");
    }
    path
}

/// The unit that keeps the cgroup at a place, if it is a slice.
pub fn unit(path: &str) -> Option<&str> {
    path.rsplit('/').next().filter(|name| name.len() > ENDING.len() && name.ends_with(ENDING))
}

/// The uid of the Pod that a slice of this name is for.
pub fn pod(name: &str) -> Option<String> {
    let last = name.strip_suffix(ENDING)?.rsplit('-').next()?;
    Some(last.strip_prefix("pod")?.replace('_', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_name_those_above_them() {
        let of = |parts: &[&str]| path(parts.iter().copied());
        assert_eq!(of(&["kubepods"]), "/kubepods.slice");
        assert_eq!(
            of(&["two-b", "kubepods", "burstable", "pod1-2"]),
            "/two_b.slice/two_b-kubepods.slice/two_b-kubepods-burstable.slice/two_b-kubepods-burstable-pod1_2.slice"
        );
        assert_eq!(unit("/kubepods.slice/kubepods-burstable.slice"), Some("kubepods-burstable.slice"));
        assert_eq!((unit("/kubepods/podu"), unit("/.slice"), unit("/")), (None, None, None));
    }

    #[test]
    fn slices_of_pods_tell_their_uids() {
        for (name, expected) in [
            ("kubepods-burstable-pod1_2.slice", Some("1-2")),
            ("kubepods-podab.slice", Some("ab")),
            ("kubepods-burstable.slice", None),
            ("kubepods.slice", None),
            ("kubepods-podab.scope", None),
        ] {
            assert_eq!(pod(name).as_deref(), expected, "{name}");
        }
    }
}
