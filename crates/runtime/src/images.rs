//! The images that skiff brings with it, and what `skiff images` does.

use std::{io, path::Path};

use crate::{
    archives,
    engine::Runtime,
    image_file::{Entry, Recipe},
    pause,
};

/// The image that holds a Pod's namespaces open.
pub const PAUSE: &str = "skiff.local/pause:1";
/// A small shell image for examples and tests.
pub const BUSYBOX: &str = "skiff.local/busybox:1";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{what}: {source}")]
    File { what: String, source: io::Error },
    #[error(transparent)]
    Import(#[from] archives::Error),
    #[error("no static busybox at /bin/busybox: install the package busybox-static")]
    NoBusybox,
    #[error(transparent)]
    Engine(#[from] crate::engine::Error),
}

fn file_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let what = what.into();
    move |source| Error::File { what, source }
}

/// The sandbox image. On an architecture without our own `pause` program, busybox' shell does its work.
pub fn pause() -> Result<Recipe, Error> {
    let Some(program) = pause::program() else {
        let script = "trap 'exit 0' TERM INT; while :; do sleep 2147483647 & wait $!; done";
        let entrypoint = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
        return Ok(Recipe { reference: PAUSE.to_owned(), entrypoint, ..busybox(BUSYBOX)? });
    };
    Ok(Recipe {
        reference: PAUSE.to_owned(),
        entries: vec![Entry::File { path: "/pause".to_owned(), mode: 0o755, data: program }],
        entrypoint: vec!["/pause".to_owned()],
        user: "65535:65535".to_owned(),
        ..Default::default()
    })
}

/// A shell with the usual commands, from the distribution's static busybox.
pub fn busybox(reference: &str) -> Result<Recipe, Error> {
    let source = ["/bin/busybox", "/usr/bin/busybox"].iter().map(Path::new).find(|p| p.exists());
    let source = source.ok_or(Error::NoBusybox)?;
    let mut recipe = Recipe {
        reference: reference.to_owned(),
        command: vec!["sh".to_owned()],
        env: vec!["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()],
        ..Default::default()
    };
    recipe.add_file(source, "/bin/busybox").map_err(file_error("reading busybox"))?;
    for name in applets(source)? {
        recipe.entries.push(Entry::Link { path: format!("/bin/{name}"), target: "busybox".to_owned() });
    }
    for (path, text) in [
        ("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"),
        ("/etc/group", "root:x:0:\nnogroup:x:65534:\n"),
    ] {
        recipe.entries.push(Entry::File { path: path.to_owned(), mode: 0o644, data: text.as_bytes().to_vec() });
    }
    for (path, mode) in [("/tmp", 0o1777), ("/root", 0o700), ("/var/run", 0o755), ("/proc", 0o555), ("/sys", 0o555)] {
        recipe.entries.push(Entry::Folder { path: path.to_owned(), mode });
    }
    Ok(recipe)
}

fn applets(busybox: &Path) -> Result<Vec<String>, Error> {
    let listed = std::process::Command::new(busybox).arg("--list").output().map_err(file_error("busybox --list"))?;
    let names = String::from_utf8_lossy(&listed.stdout);
    Ok(names.lines().filter(|n| *n != "busybox").map(str::to_owned).collect())
}

/// Writes a recipe's archive to a file.
pub fn build(recipe: &Recipe, path: &Path) -> Result<(), Error> {
    let mut file = std::fs::File::create(path).map_err(file_error(format!("creating {}", path.display())))?;
    recipe.write(&mut file).map_err(file_error(format!("writing {}", path.display())))
}

/// Makes sure that the engine behind `socket` holds the image of a recipe; `folder` takes the archive meanwhile.
pub async fn ensure(engine: &dyn Runtime, socket: &Path, recipe: &Recipe, folder: &Path) -> Result<(), Error> {
    if engine.image(&recipe.reference).await?.is_some() {
        return Ok(());
    }
    let name: String = recipe.reference.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let archive = folder.join(format!("{name}.tar"));
    build(recipe, &archive)?;
    let imported = archives::import(socket, &archive).await;
    // A leftover archive costs only space.
    let _ = std::fs::remove_file(&archive);
    imported?;
    if archives::shows(engine, &recipe.reference).await? {
        return Ok(());
    }
    Err(archives::Error::Unseen { path: archive, image: recipe.reference.clone() }.into())
}
