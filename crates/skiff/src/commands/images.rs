//! `skiff images`: what the cluster's own engine has, and how images without a registry get there.

use std::{path::Path, process::ExitCode};

use anyhow::{Context, bail};
use runtime::{Runtime, image_file::Recipe, images};

use crate::{commands::server, flags::options::Images, layout::Layout, siblings};

pub fn run(command: Images) -> anyhow::Result<ExitCode> {
    server::runtime()?.block_on(async {
        match command {
            Images::Import { files, data_dir } => {
                for file in files {
                    import(&data_dir, &file).await?;
                }
            }
            Images::List { data_dir } => list(&data_dir).await?,
            Images::Build { tag, files, busybox, entrypoint, output, data_dir } => {
                let recipe = recipe(&tag, &files, busybox, entrypoint)?;
                match output {
                    Some(path) => images::build(&recipe, &path)?,
                    None => {
                        socket(&data_dir)?;
                        // Not in a folder where others could put something under its name first.
                        let folder = Layout::new(&data_dir).images();
                        files::modes::folder(&folder, files::modes::PRIVATE_FOLDER)
                            .with_context(|| format!("cannot make {}", folder.display()))?;
                        let archive = folder.join(format!("build-{}.tar", std::process::id()));
                        let built = images::build(&recipe, &archive);
                        let imported = match built {
                            Ok(()) => import(&data_dir, &archive).await,
                            Err(e) => Err(e.into()),
                        };
                        // The archive was only a step on the way.
                        let _ = std::fs::remove_file(&archive);
                        imported?;
                    }
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn socket(data_dir: &Path) -> anyhow::Result<std::path::PathBuf> {
    let socket = Layout::new(data_dir).engine_options().socket();
    if !socket.exists() {
        bail!("no container engine runs for {}; start the cluster with `skiff up`", data_dir.display());
    }
    Ok(socket)
}

/// Imports into the engine of each node of this machine.
async fn import(data_dir: &Path, file: &Path) -> anyhow::Result<()> {
    let others =
        siblings::known(&Layout::new(data_dir)).into_iter().map(|other| other.layout.engine_options().socket());
    let mut names = Vec::new();
    for socket in std::iter::once(socket(data_dir)?).chain(others.filter(|socket| socket.exists())) {
        let imported = images::import(&socket, file).await;
        names = imported.with_context(|| format!("cannot import {}", file.display()))?;
    }
    for name in names {
        println!("{name}");
    }
    Ok(())
}

async fn list(data_dir: &Path) -> anyhow::Result<()> {
    let engine = runtime::Cri::new(&socket(data_dir)?.to_string_lossy());
    let mut images = engine.images().await?;
    images.sort_by(|a, b| a.repo_tags.cmp(&b.repo_tags));
    println!("{:<60} {:>10}  ID", "IMAGE", "SIZE");
    for image in images {
        let name = image.repo_tags.first().cloned().unwrap_or_else(|| "<none>".to_owned());
        let id: String = image.id.trim_start_matches("sha256:").chars().take(12).collect();
        println!("{name:<60} {:>7} kB  {id}", image.size / 1000);
    }
    Ok(())
}

fn recipe(tag: &str, files: &[String], busybox: bool, entrypoint: Vec<String>) -> anyhow::Result<Recipe> {
    if !is_reference(tag) {
        bail!("--tag {tag:?} is not the name of an image; write one such as skiff.local/tools:1");
    }
    let mut recipe =
        if busybox { images::busybox(tag)? } else { Recipe { reference: tag.to_owned(), ..Recipe::default() } };
    for pair in files {
        let Some((source, path)) = pair.split_once('=') else {
            bail!("--file {pair:?} must be SOURCE=/PATH/IN/IMAGE");
        };
        if !path.starts_with('/') || path.ends_with('/') {
            bail!("--file {pair:?} must be SOURCE=/PATH/IN/IMAGE, with the whole path of the file in the image");
        }
        recipe.add_file(Path::new(source), path).with_context(|| format!("cannot read {source}"))?;
    }
    if !entrypoint.is_empty() {
        recipe.entrypoint = entrypoint;
        recipe.command.clear();
    }
    if recipe.entries.is_empty() {
        bail!("the image would be empty; give --file or --busybox");
    }
    Ok(recipe)
}

/// `name` or `host:port/path/name`, with a tag or without, after the rules of the distribution project.
fn is_reference(text: &str) -> bool {
    let (name, tag) = match text.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (text, None),
    };
    let tag_fits = |t: &str| {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        t.len() <= 128 && t.starts_with(word) && t.chars().all(|c| word(c) || c == '.' || c == '-')
    };
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let part_fits =
        |p: &str| p.starts_with(edge) && p.ends_with(edge) && p.chars().all(|c| edge(c) || "._-".contains(c));
    let (host, path) = match name.split_once('/') {
        Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => (Some(host), path),
        _ => (None, name),
    };
    let host_fits = host.is_none_or(|h| h.chars().all(|c| c.is_ascii_alphanumeric() || ".-:".contains(c)));
    tag.is_none_or(tag_fits) && host_fits && path.split('/').all(part_fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references() {
        for good in ["a", "a:1", "skiff.local/busybox:1", "localhost:5000/a/b-c:v1.2", "a_b.c"] {
            assert!(is_reference(good), "{good}");
        }
        for bad in ["", "BAD TAG", "a:", ":1", "a/", "/a", "A", "a:b c", "a//b", "x.y/A"] {
            assert!(!is_reference(bad), "{bad}");
        }
    }
}
