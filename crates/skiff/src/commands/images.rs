//! `skiff images`: what the cluster's own engine has, and how images without a registry get there.

use std::{path::Path, process::ExitCode};

use anyhow::{Context, bail};
use runtime::{Runtime, archives, image_file::Recipe, images, reference};

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
                        let folder = Layout::new(&data_dir).image_builds();
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
        let imported = archives::import(&socket, file).await;
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
    if let Err(why) = reference::parse(tag) {
        bail!("--tag {tag:?} is not the name of an image: {why}; write one such as skiff.local/tools:1");
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
