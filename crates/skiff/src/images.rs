//! `skiff images`: what the cluster's own engine has, and how images without a registry get there.

use std::{path::Path, process::ExitCode};

use anyhow::{Context, bail};
use runtime::{Runtime, image_file::Recipe, images};

use crate::{layout::Layout, options::Images, server};

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
                        let archive = std::env::temp_dir().join(format!("skiff-image-{}.tar", std::process::id()));
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
    let socket = crate::agent::engine_options(&Layout::new(data_dir)).socket();
    if !socket.exists() {
        bail!("no container engine runs for {}; start the cluster with `skiff up`", data_dir.display());
    }
    Ok(socket)
}

async fn import(data_dir: &Path, file: &Path) -> anyhow::Result<()> {
    for name in
        images::import(&socket(data_dir)?, file).await.with_context(|| format!("cannot import {}", file.display()))?
    {
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
    let mut recipe =
        if busybox { images::busybox(tag)? } else { Recipe { reference: tag.to_owned(), ..Recipe::default() } };
    for pair in files {
        let Some((source, path)) = pair.split_once('=') else {
            bail!("--file {pair:?} must be SOURCE=/PATH/IN/IMAGE");
        };
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
