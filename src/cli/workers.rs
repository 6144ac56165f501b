//! The flags that say which workers there are, and how to reach them.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use brigade_actors::transport::authority::AUTHORITY_FILE;
use brigade_actors::transport::{Security, Transport, TransportOptions, transport};
use clap::{Args, ValueEnum};

use super::console::Console;
use super::signals::AtInterrupt;
use super::table::bytes;
use crate::cluster::{Cluster, ClusterOptions, OnLoss, link_error};
use crate::device::DeviceId;
use crate::error::{Error, Result, err};
use crate::partition::MeasuredLink;
use crate::registry::Registry;

/// How links to other machines are secured; the same for workers and coordinators.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Security")]
pub(super) struct Secured {
    /// The folder of certificates that `brigade cluster init` made
    /// (`$XDG_CONFIG_HOME/brigade/cluster` unless told)
    #[arg(long, value_name = "DIR")]
    pub(super) certificates: Option<PathBuf>,
    /// Neither encrypt nor ask who is there: whoever reaches the port can use it. On loopback
    /// addresses nothing is encrypted unless --certificates is given
    #[arg(long, conflicts_with = "certificates")]
    pub(super) insecure: bool,
}

/// The name of the certificate of a coordinator, unless told.
const COORDINATOR: &str = "coordinator";

/// The folder of certificates, unless told.
pub(super) fn certificates_folder() -> PathBuf {
    let base = std::env::var_os("XDG_CONFIG_HOME").filter(|v| !v.is_empty()).map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".config"));
    base.or_else(home).unwrap_or_else(|| PathBuf::from(".")).join("brigade").join("cluster")
}

/// Whether each of these addresses is one of this machine alone.
fn all_loopback<'a>(mut addresses: impl Iterator<Item = &'a str>) -> bool {
    addresses.all(|a| {
        let host = a.rsplit_once(':').map_or(a, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    })
}

impl Secured {
    /// The transport for these addresses, as the one with this certificate.
    ///
    /// # Errors
    /// If there are no certificates and the addresses need them.
    pub(super) fn open<'a>(
        &self,
        name: &str,
        addresses: impl Iterator<Item = &'a str>,
        lease: Duration,
    ) -> Result<Arc<dyn Transport>> {
        let folder = self.certificates.clone().unwrap_or_else(certificates_folder);
        let files = Security::MutualFiles {
            authority: folder.join(AUTHORITY_FILE),
            certificate: folder.join(format!("{name}.pem")),
            key: folder.join(format!("{name}.key")),
        };
        let have = [AUTHORITY_FILE, &format!("{name}.pem"), &format!("{name}.key")];
        let lacks = have.into_iter().find(|file| !folder.join(file).is_file());
        let security = if self.insecure {
            Security::Insecure
        } else if let (Some(_), Some(file)) = (&self.certificates, lacks) {
            return Err(err!(Usage, "there is no `{file}` in `{}`", folder.display()).with_help(
                "make certificates with `brigade cluster init`, or copy the three files there: \
                 authority.pem, and .pem and .key of this side's own name",
            ));
        } else if self.certificates.is_some() {
            files
        } else if all_loopback(addresses) {
            Security::Plaintext
        } else if lacks.is_none() {
            files
        } else {
            return Err(err!(
                Usage,
                "there is no certificate `{name}` in `{}`, and links to other machines are encrypted",
                folder.display()
            )
            .with_help(
                "make certificates with `brigade cluster init`, name their folder with --certificates, \
                 or say --insecure",
            ));
        };
        let kind = transport("grpc").ok_or_else(|| err!(Internal, "no transport `grpc`"))?;
        let answer = (lease / 2).clamp(Duration::from_millis(250), Duration::from_secs(20));
        let options = TransportOptions::new()
            .security(security)
            .keep_alive((lease / 4).min(Duration::from_secs(1)), answer)
            .progress_timeout(lease);
        (kind.open)(&options).map_err(link_error)
    }
}

/// What becomes of the stages of a lost worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Loss {
    /// Place them again, and compute again what was under way
    #[default]
    Replace,
    /// The items that need them fail
    Fail,
}

/// Workers, and how to deal with them.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Workers")]
pub(super) struct Workers {
    /// Workers as [NAME=]HOST:PORT. Their devices are named NAME/DEVICE; without --device and --plan
    /// there is one stage on each worker. A worker's NAME is its HOST unless told
    #[arg(long, value_name = "[NAME=]HOST:PORT", value_delimiter = ',')]
    pub(super) workers: Vec<Named>,
    /// Seconds that a worker may be silent before it is lost
    #[arg(long, value_name = "SECONDS", requires = "workers", value_parser = seconds)]
    lease: Option<Duration>,
    /// Seconds to wait for workers that are not there yet
    #[arg(long, value_name = "SECONDS", requires = "workers", value_parser = seconds)]
    connect_within: Option<Duration>,
    /// Seconds that a stage may have work and complete nothing before its worker is lost
    #[arg(long, value_name = "SECONDS", requires = "workers", value_parser = seconds)]
    progress_within: Option<Duration>,
    /// What becomes of the stages of a lost worker
    #[arg(long, value_enum, requires = "workers", default_value_t)]
    on_loss: Loss,
    /// No stage of a lost worker comes to this process
    #[arg(long, requires = "workers")]
    not_here: bool,
    /// The certificate that this coordinator shows, by its name
    #[arg(long, value_name = "NAME", requires = "workers", default_value = COORDINATOR)]
    coordinator: String,
    #[command(flatten)]
    secured: Secured,
}

/// A worker on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    name: String,
    /// Whether that is what the command line says.
    stated: bool,
    address: String,
}

impl std::str::FromStr for Named {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, address) = match text.split_once('=') {
            Some((name, address)) => (Some(name.to_owned()), address),
            None => (None, text),
        };
        let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
        if host.is_empty() || port.parse::<u16>().is_err() {
            return Err(err!(Usage, "`{text}` is no worker: write [NAME=]HOST:PORT, as in a:7000"));
        }
        let of_host = || {
            let plain =
                |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
            let name: String = host.to_lowercase().chars().map(plain).collect();
            name.trim_matches('-').to_owned()
        };
        let stated = name.is_some();
        let name = name.unwrap_or_else(of_host);
        DeviceId::cpu(0).at(&name)?;
        Ok(Self { name, stated, address: address.to_owned() })
    }
}

pub(super) fn seconds(text: &str) -> Result<Duration> {
    let seconds = text.parse::<f64>().ok().filter(|s| *s > 0.0 && *s <= 1e6);
    let seconds = seconds.ok_or_else(|| err!(Usage, "it must be a number of seconds above 0"))?;
    Ok(Duration::from_secs_f64(seconds))
}

impl Workers {
    /// Connects to the workers, if there are any. From then on a signal is told, the workers get to
    /// know of it, and the process ends.
    pub(super) fn connect(
        &self,
        registry: &Registry,
        roots: Vec<PathBuf>,
        console: &Console,
    ) -> Result<Option<Cluster>> {
        if self.workers.is_empty() {
            return Ok(None);
        }
        let interrupt = AtInterrupt::new(console)?;
        let mut options = ClusterOptions::new()
            .name(self.coordinator.clone())
            .in_this_process(!self.not_here)
            .on_loss(match self.on_loss {
                Loss::Replace => OnLoss::Replace,
                Loss::Fail => OnLoss::Fail,
            });
        let lease = self.lease.unwrap_or(Duration::from_secs(5));
        options = options.lease(lease);
        if let Some(limit) = self.progress_within {
            options = options.progress(limit);
        }
        if let Some(limit) = self.connect_within {
            options = options.connect_within(limit);
        }
        options = options.roots(roots);
        if console.tells_progress() {
            options = options.on_progress(|stage| {
                let (seconds, read) = (stage.elapsed.as_secs_f64(), bytes(Some(stage.bytes)));
                let so_far = if stage.ready { "is ready" } else { "is being loaded" };
                // There is nowhere else to say that this failed.
                let _ = writeln!(
                    std::io::stderr().lock(),
                    "stage {} `{}` on {} {so_far}: {read} of weights read, {seconds:.0} s",
                    stage.stage,
                    stage.name,
                    stage.device
                );
            });
        }
        // Several workers of one host are told apart by their ports.
        let mut workers: Vec<(String, String)> = Vec::with_capacity(self.workers.len());
        for worker in &self.workers {
            let mut name = worker.name.clone();
            if !worker.stated && self.workers.iter().filter(|w| w.name == name).count() > 1 {
                let port = worker.address.rsplit_once(':').map_or("", |(_, port)| port);
                name = format!("{name}-{port}");
            }
            workers.push((name, worker.address.clone()));
        }
        let addresses = workers.iter().map(|(_, address)| address.as_str());
        let transport = self.secured.open(&self.coordinator, addresses, lease)?;
        let set = |close| interrupt.set(close);
        Cluster::connect_closing(transport, &workers, registry, options, set).map(Some)
    }
}

/// What is known of its links.
pub(super) fn links(cluster: &Cluster) -> Vec<MeasuredLink> {
    let all = cluster.stats().links.into_iter().filter(|l| l.failed.is_none());
    all.map(|l| MeasuredLink {
        from: l.from,
        to: l.to,
        latency_us: l.latency_us.round() as u64,
        bytes_per_s: l.bytes_per_s,
    })
    .collect()
}

/// Links that could not be measured, and why.
pub(super) fn unmeasured(cluster: &Cluster) -> Vec<String> {
    let failed = cluster.stats().links.into_iter().filter_map(|l| Some((l.from, l.to, l.failed?)));
    failed
        .map(|(from, to, why)| {
            format!("the link between `{from}` and `{to}` could not be measured: {why}")
        })
        .collect()
}

/// What a cluster did, in words, at the end of a run.
pub(super) fn tell(cluster: &Cluster, console: &Console) {
    let stats = cluster.stats();
    for stage in &stats.stages {
        console.detail(&format!(
            "stage {} `{}` on {}: {} firings, {:.3} s computing; loaded in {:.3} s ({} bytes read), \
             compiled in {:.3} s",
            stage.stage,
            stage.name,
            stage.device,
            stage.firings,
            stage.busy_s,
            stage.load_s,
            stage.read_bytes,
            stage.compile_s
        ));
    }
    for loss in &stats.losses {
        let placed = match loss.replaced_s {
            Some(s) => format!("placed again after {s:.3} s, {} firings sent again", loss.replayed),
            None => "not placed again".to_owned(),
        };
        console.notice(&format!(
            "notice: worker `{}` was lost ({}), {:.3} s after its last sign of life; its stages were {placed}",
            loss.worker, loss.why, loss.silent_s
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_named_by_their_hosts() {
        for (text, name, address) in [
            ("a:7000", "a", "a:7000"),
            ("gpu-1=10.0.0.7:7000", "gpu-1", "10.0.0.7:7000"),
            ("10.0.0.7:7000", "10.0.0.7", "10.0.0.7:7000"),
            ("[::1]:7000", "1", "[::1]:7000"),
            ("Rack2.Local:1", "rack2.local", "Rack2.Local:1"),
        ] {
            let worker: Named = text.parse().unwrap();
            assert_eq!((worker.name.as_str(), worker.address.as_str()), (name, address), "{text}");
        }
        for text in ["", "a", "a:", "a:x", ":7000", "A=a:1", "a:70000", "x/y=a:1"] {
            assert!(text.parse::<Named>().is_err(), "{text}");
        }
    }

    #[test]
    fn loopback_is_told_from_the_rest() {
        assert!(all_loopback(["127.0.0.1:7", "localhost:8", "[::1]:9"].into_iter()));
        assert!(!all_loopback(["127.0.0.1:7", "10.0.0.1:8"].into_iter()));
        assert!(!all_loopback(["0.0.0.0:7"].into_iter()));
    }
}
