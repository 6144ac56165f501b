//! `brigade cluster`: the certificates of a cluster.

use std::path::{Path, PathBuf};
use std::time::Duration;

use brigade_actors::transport::authority::{AUTHORITY_FILE, AUTHORITY_KEY_FILE, Authority, Issued};
use clap::{Args as ClapArgs, Subcommand};
use serde::Serialize;

use super::console::Console;
use super::failure::Outcome;
use super::workers::certificates_folder;
use crate::error::{Error, Result, err};

/// Arguments of `cluster`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a private authority, and a certificate for each worker and for the coordinator. A folder
    /// that has an authority keeps it: run it again to add workers or to renew certificates
    Init(Init),
}

#[derive(Debug, ClapArgs)]
struct Init {
    /// The folder (`$XDG_CONFIG_HOME/brigade/cluster` unless told)
    #[arg(long, value_name = "DIR")]
    certificates: Option<PathBuf>,
    /// A worker and the host names and addresses that it is reached by (repeatable)
    #[arg(long, value_name = "NAME[=HOST,…]")]
    worker: Vec<String>,
    /// A coordinator (repeatable)
    #[arg(long, value_name = "NAME", default_value = "coordinator")]
    coordinator: Vec<String>,
    /// How many days certificates are valid
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u64).range(1..=36_500))]
    days: u64,
}

#[derive(Debug, Serialize)]
struct Document {
    folder: PathBuf,
    new_authority: bool,
    certificates: Vec<PathBuf>,
}

pub(super) fn run(args: &Args, console: &Console) -> Outcome {
    match &args.command {
        Command::Init(args) => init(args, console),
    }
}

fn failed(error: brigade_actors::transport::authority::AuthorityError) -> Error {
    err!(Io, "certificates could not be made").with_source(error)
}

/// The certificates that are asked for, by their names, each with its hosts.
///
/// # Errors
/// If a name cannot be one, is asked for twice, or is that of the authority's files.
fn wanted(args: &Init) -> Result<Vec<(&str, Vec<&str>)>> {
    let mut all: Vec<(&str, Vec<&str>)> = Vec::new();
    let workers = args.worker.iter().map(|w| w.split_once('=').unwrap_or((w, "")));
    for (name, hosts) in workers.chain(args.coordinator.iter().map(|name| (name.as_str(), ""))) {
        // It is a name in placements and of files, too.
        crate::DeviceId::cpu(0).at(name)?;
        if AUTHORITY_FILE.strip_suffix(".pem") == Some(name) {
            return Err(err!(Usage, "`{name}` is what the files of the authority are called")
                .with_help("give the worker or coordinator another name"));
        }
        if all.iter().any(|(other, _)| *other == name) {
            return Err(err!(Usage, "the certificate `{name}` is asked for twice").with_help(
                "each worker and coordinator needs a name of its own; hosts of one worker are written \
                 --worker NAME=HOST,HOST",
            ));
        }
        all.push((name, hosts.split(',').filter(|h| !h.is_empty()).collect()));
    }
    Ok(all)
}

fn init(args: &Init, console: &Console) -> Outcome {
    let wanted = wanted(args)?;
    let folder = args.certificates.clone().unwrap_or_else(certificates_folder);
    create_folder(&folder)?;
    let day = Duration::from_secs(24 * 3600);
    let there = folder.join(AUTHORITY_KEY_FILE).exists();
    let authority = if there {
        Authority::read(&folder).map_err(failed)?
    } else {
        let made = Authority::new("brigade cluster", day * 3650).map_err(failed)?;
        made.write(&folder).map_err(failed)?;
        made
    };
    let valid = day * u32::try_from(args.days).unwrap_or(36_500);
    let mut certificates = Vec::new();
    for (name, hosts) in wanted {
        let issued: Issued = authority.issue(name, &hosts, valid).map_err(failed)?;
        let (pem, key) = issued.write(&folder).map_err(failed)?;
        certificates.extend([pem, key]);
    }
    let mut text = format!(
        "{} authority in {}\n",
        if there { "kept the" } else { "made an" },
        folder.display()
    );
    for path in &certificates {
        text += &format!("wrote {}\n", path.display());
    }
    text += &format!(
        "each worker needs {AUTHORITY_FILE} and its own .pem and .key; keep {AUTHORITY_KEY_FILE} to \
         yourself: whoever has it can make certificates\n"
    );
    console.result(&Document { folder, new_authority: !there, certificates }, &text)
}

/// A folder that its owner alone may look into, unless it is there.
fn create_folder(folder: &Path) -> Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt as _;
        builder.mode(0o700);
    }
    builder
        .create(folder)
        .map_err(|e| err!(Io, "cannot make the folder `{}`", folder.display()).with_source(e))
}
