//! Worker processes in their namespaces, and a coordinator.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade::actors::transport::{Security, Transport, TransportOptions, transport};
use brigade::cluster::{Cluster, ClusterOptions};
use brigade::{Error, Registry};

use crate::namespaces::Namespaces;

pub(crate) const BRIGADE: &str = env!("CARGO_BIN_EXE_brigade");

/// A worker process.
pub(crate) struct Process {
    child: Child,
    pub(crate) name: String,
    pub(crate) address: String,
}

impl Process {
    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: &str) {
        let status =
            Command::new("kill").args(["-s", signal, &self.child.id().to_string()]).status();
        assert!(status.unwrap().success(), "kill -s {signal}");
    }

    /// Waits for its end.
    pub(crate) fn ends_within(&mut self, within: Duration) -> bool {
        let until = Instant::now() + within;
        loop {
            if self.child.try_wait().unwrap().is_some() {
                return true;
            }
            if Instant::now() > until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What its threads have computed.
    pub(crate) fn busy(&self) -> Busy {
        Busy::of(&self.child.id().to_string())
    }

    /// Bytes that it has in memory.
    pub(crate) fn resident(&self) -> u64 {
        let path = format!("/proc/{}/statm", self.child.id());
        let text = std::fs::read_to_string(path).unwrap();
        text.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a process has computed since it began, in clock ticks of the system (10 ms).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Busy {
    pub(crate) all: u64,
    /// The threads of its transports: HTTP/2, TLS, the copies into tensors, and what the system does
    /// for them as they call it. What it does for a network card beside that is nobody's.
    pub(crate) network: u64,
}

impl Busy {
    pub(crate) fn here() -> Self {
        Self::of("self")
    }

    fn of(process: &str) -> Self {
        let folder = format!("/proc/{process}");
        let mut busy = Self { all: ticks(&folder).unwrap(), network: 0 };
        for task in std::fs::read_dir(format!("{folder}/task")).unwrap() {
            let task = task.unwrap().path();
            // A thread may be gone by now.
            let name = std::fs::read_to_string(task.join("comm")).unwrap_or_default();
            if name.trim() == "link" || name.trim() == "link-worker" {
                busy.network += ticks(&task.to_string_lossy()).unwrap_or(0);
            }
        }
        busy
    }
}

impl std::ops::Add for Busy {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { all: self.all + other.all, network: self.network + other.network }
    }
}

impl std::ops::Sub for Busy {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        let (all, network) = (self.all - other.all, self.network.saturating_sub(other.network));
        Self { all, network }
    }
}

/// Of a process or a thread, in its own code and in the system's for it.
fn ticks(folder: &str) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("{folder}/stat")).ok()?;
    // The name is in parentheses, and may have any in it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

/// Certificates, folders and namespaces of a test.
pub(crate) struct Rig<'a> {
    spaces: &'a Namespaces,
    pub(crate) folder: PathBuf,
    pub(crate) roots: Vec<PathBuf>,
}

impl<'a> Rig<'a> {
    pub(crate) fn new(spaces: &'a Namespaces, folder: &Path) -> Self {
        let rig = Self { spaces, folder: folder.to_owned(), roots: vec![folder.to_owned()] };
        let mut init = Command::new(BRIGADE);
        init.args(["cluster", "init", "--certificates"]).arg(rig.certificates());
        for n in 1..=4 {
            init.arg("--worker").arg(format!("w{n}=10.77.0.{}", n + 1));
        }
        let made = init.output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        rig
    }

    pub(crate) fn certificates(&self) -> PathBuf {
        self.folder.join("certificates")
    }

    /// The address of a worker.
    pub(crate) fn address(name: &str) -> String {
        let n: u32 = name[1..].parse().unwrap();
        format!("10.77.0.{}:7000", n + 1)
    }

    /// The program, inside the namespace of a worker.
    pub(crate) fn inside(&self, name: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.spaces.name(name), BRIGADE]);
        command
    }

    /// Starts a worker and waits until it listens.
    pub(crate) fn start(&self, name: &str) -> Process {
        let address = Self::address(name);
        let mut command = self.inside(name);
        command.args(["worker", "--listen", &address, "--name", name, "--certificates"]);
        command.arg(self.certificates());
        for root in &self.roots {
            command.arg("--weights-root").arg(root);
        }
        let log = std::fs::File::create(self.folder.join(format!("{name}.log"))).unwrap();
        let mut child =
            command.stdout(Stdio::piped()).stderr(log).stdin(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line.trim(), format!("listening on {address}"), "{name}");
        Process { child, name: name.to_owned(), address }
    }

    pub(crate) fn transport(&self, folder: &Path, coordinator: &str) -> Arc<dyn Transport> {
        let security = Security::MutualFiles {
            authority: folder.join("authority.pem"),
            certificate: folder.join(format!("{coordinator}.pem")),
            key: folder.join(format!("{coordinator}.key")),
        };
        let lease = LEASE;
        let options = TransportOptions::new()
            .security(security)
            .keep_alive(lease / 4, lease / 2)
            .progress_timeout(lease);
        (transport("grpc").unwrap().open)(&options).unwrap()
    }

    pub(crate) fn connect(
        &self,
        names: &[&str],
        options: ClusterOptions,
    ) -> Result<Cluster, Error> {
        let workers: Vec<(String, String)> =
            names.iter().map(|n| ((*n).to_owned(), Self::address(n))).collect();
        let transport = self.transport(&self.certificates(), "coordinator");
        let options = options.lease(LEASE).roots(self.roots.iter());
        Cluster::connect(transport, &workers, &Registry::default(), options)
    }
}

/// The lease of these tests.
pub(crate) const LEASE: Duration = Duration::from_secs(2);
