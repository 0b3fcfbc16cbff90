//! The flags that a KubeletConfiguration stands for: they are inserted into the command line, on which a flag that was typed wins.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use kubelet::configuration::Document;

use super::{
    config_file,
    kubelet_config::{KubeletConfig, whole, wrong},
};

/// Inserts the flags that the configuration stands for behind the command, before the ones that are there.
pub fn insert(args: &mut Vec<String>) -> anyhow::Result<()> {
    if !args.get(1).is_some_and(|command| ["up", "agent"].contains(&command.as_str())) {
        return Ok(());
    }
    let given = |names: [&str; 2]| names.iter().find_map(|name| last(args, name)).map(PathBuf::from);
    let files = KubeletConfig {
        kubelet_config: given(["kubelet-config", "config"]),
        kubelet_config_dir: given(["kubelet-config-dir", "config-dir"]),
    };
    let parts = files.parts()?;
    let Some(document) = whole(&parts)? else { return Ok(()) };
    let sources = sources(&parts)?;
    let mut flags = Vec::new();
    for (name, value) in document.flags().map_err(|why| wrong(&parts[parts.len() - 1].0, &why))? {
        let place = sources.get(name).map_or(parts[0].0.as_path(), |path| path);
        let Some(flag) = flag(name, &value, args) else { continue };
        config_file::check(&place.display().to_string(), &args[1], &flag)?;
        flags.push(flag);
    }
    args.splice(2..2, flags);
    Ok(())
}

/// The files that flags have their values from, by the names of the flags.
fn sources(parts: &[(PathBuf, Document)]) -> anyhow::Result<BTreeMap<&'static str, &Path>> {
    let mut sources = BTreeMap::new();
    for (path, part) in parts {
        let flags = part.flags().map_err(|why| wrong(path, &why))?;
        sources.extend(flags.into_iter().map(|(name, _)| (name, path.as_path())));
    }
    Ok(sources)
}

/// The value that a flag has last on the command line.
fn last(args: &[String], name: &str) -> Option<String> {
    let (alone, with) = (format!("--{name}"), format!("--{name}="));
    let mut values = args.iter().enumerate().filter_map(|(at, arg)| match arg.strip_prefix(&with) {
        Some(value) => Some(value.to_owned()),
        None => args.get(at + 1).filter(|_| *arg == alone).cloned(),
    });
    values.next_back()
}

/// A flag as it is typed; `None` where it was typed.
fn flag(name: &str, value: &str, args: &[String]) -> Option<String> {
    let typed = args.iter().any(|arg| *arg == format!("--{name}") || arg.starts_with(&format!("--{name}=")));
    (!typed).then(|| format!("--{name}={value}"))
}

#[cfg(test)]
mod tests {
    use super::{super::kubelet_config::settings, *};

    const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

    fn args(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn parts_are_laid_over_the_file_in_the_order_of_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| std::fs::write(folder.path().join(name), format!("{HEAD}{text}")).unwrap();
        put("main.yaml", "maxPods: 20\nkubeReserved: {cpu: 100m, memory: 1Gi}\nallowedUnsafeSysctls: [net.a, net.b]\n");
        put("20-b.conf", "maxPods: 40\nkubeReserved: {cpu: 200m}\nallowedUnsafeSysctls: [net.c]\n");
        put("10-a.conf", "maxPods: 30\npodPidsLimit: 50\n");
        put("30-c.yaml", "maxPods: 99\n");
        let files = KubeletConfig {
            kubelet_config: Some(folder.path().join("main.yaml")),
            kubelet_config_dir: Some(folder.path().to_owned()),
        };
        let document = files.document().unwrap().unwrap();
        let set = settings(Some(&document)).unwrap();
        assert_eq!(set.reserved.kube["cpu"].milli_value(), 200);
        assert_eq!((set.reserved.kube["memory"].value(), set.pod_pids), (1 << 30, Some(50)));
        let mut given = args(&["skiff", "agent", "--config", folder.path().join("main.yaml").to_str().unwrap()]);
        given.push(format!("--config-dir={}", folder.path().display()));
        given.push("--kubelet-port=1".to_owned());
        insert(&mut given).unwrap();
        assert_eq!(given[2..4], ["--max-pods=40".to_owned(), "--allowed-unsafe-sysctls=net.c".to_owned()]);
        put("40-d.conf", "maxPod: 1\n");
        let why = files.document().unwrap_err().to_string();
        assert!(why.ends_with("40-d.conf: unknown field \"maxPod\""), "{why}");
        // A value that only its flag refuses, and one that a later file sets right.
        put("40-d.conf", "port: 0\n");
        let told = |given: &[String]| insert(&mut given.to_vec()).map_err(|why| why.to_string());
        let folder_alone = args(&["skiff", "agent", &format!("--config-dir={}", folder.path().display())]);
        let mut with_main = folder_alone.clone();
        with_main.push(format!("--config={}", folder.path().join("main.yaml").display()));
        for given in [&folder_alone, &with_main] {
            let why = told(given).unwrap_err();
            assert!(why.contains("40-d.conf: invalid value '0' for '--kubelet-port"), "{why}");
        }
        put("50-e.conf", "port: 10251\n");
        assert_eq!(told(&with_main), Ok(()));
        put("60-f.conf", "clusterDNS: [10.0.0.10, x]\n");
        let why = told(&args(&["skiff", "up", &with_main[2]])).unwrap_err();
        assert!(why.contains("60-f.conf: invalid value 'x' for '--cluster-dns <IP>': Invalid clusterDNS IP"), "{why}");
    }

    #[test]
    fn the_command_line_wins_and_lists_are_flags_that_are_given_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("k.yaml");
        std::fs::write(&file, format!("{HEAD}maxPods: 20\nport: 10251\n")).unwrap();
        let mut given = args(&["skiff", "up", "--max-pods=5"]);
        given.push(format!("--kubelet-config={}", file.display()));
        insert(&mut given).unwrap();
        assert_eq!(given[2..4], ["--kubelet-port=10251".to_owned(), "--max-pods=5".to_owned()]);
        std::fs::write(&file, format!("{HEAD}clusterDNS: [10.0.0.10, fd00::a]\n")).unwrap();
        for command in ["up", "agent"] {
            let mut given = args(&["skiff", command]);
            given.push(format!("--kubelet-config={}", file.display()));
            insert(&mut given).unwrap();
            assert_eq!(given[2..4], ["--cluster-dns=10.0.0.10", "--cluster-dns=fd00::a"], "{command}");
        }
        std::fs::write(&file, format!("{HEAD}port: 0\n")).unwrap();
        let mut given = args(&["skiff", "agent"]);
        given.push(format!("--kubelet-config={}", file.display()));
        let why = insert(&mut given).unwrap_err().to_string();
        assert!(why.contains("k.yaml: invalid value '0' for '--kubelet-port"), "{why}");
    }
}
